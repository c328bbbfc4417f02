"""A Redis or Valkey server of your own, started and ended by your program.

    with Embedded() as server:                # unix socket, temporary directory, nothing kept
        app = App(server.url)

    Embedded("data")                          # own directory, append-only file on: survives a restart
    Embedded(port=0)                          # free loopback port instead of the unix socket alone
    shared("data")                            # every process that says this gets the same server
    shared()                                  # the same, in `.headrace` of the current directory

What it costs: one small guard process beside the server. What it does not do: replication, TLS by itself
(give the lines as `config`), or anything on Windows.
"""

from headrace.embedded.binary import ServerStartFailed, find_binary, version_of
from headrace.embedded.conf import ConfigLines
from headrace.embedded.server import Embedded, shared

__all__ = ["ConfigLines", "Embedded", "ServerStartFailed", "find_binary", "shared", "version_of"]
