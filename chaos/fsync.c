/* A witness of fsync and fdatasync: after each, one line "<inode> <size at the time of the call>" is appended to the
 * file named by FSYNC_WITNESS. A power loss is then: kill the server, cut each file to the size last written down.
 * The size is taken before the sync, because bytes that arrive meanwhile are not promised to be on disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int witnessed(int fd, const char *name) {
    struct stat about;
    int known = fstat(fd, &about) == 0;
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    int answer = real(fd);
    const char *place = getenv("FSYNC_WITNESS");
    if (answer == 0 && known && place) {
        int file = open(place, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (file >= 0) {
            char line[64];
            int length = snprintf(line, sizeof line, "%lu %ld\n", (unsigned long)about.st_ino, (long)about.st_size);
            if (write(file, line, length) != length) abort();
            close(file);
        }
    }
    return answer;
}

int fsync(int fd) { return witnessed(fd, "fsync"); }
int fdatasync(int fd) { return witnessed(fd, "fdatasync"); }
