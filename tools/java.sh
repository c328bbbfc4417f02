#!/bin/sh
# Find Java 17 or newer for Spark, which starts that of JAVA_HOME where it is set. Where none is and apt can install one,
# do; else say how. Never fails: what needs Java says so itself.
PACKAGES="openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless"  # no distribution has all of them

major() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }
found() { [ -n "$1" ] && [ -x "$1" ] && [ "$(major "$1")" -ge 17 ] 2>/dev/null; }
apt() { DEBIAN_FRONTEND=noninteractive apt-get "$@" >/dev/null 2>&1; }

if [ -n "$JAVA_HOME" ]; then
  found "$JAVA_HOME/bin/java" || echo "Spark needs Java 17 or 21, and JAVA_HOME is none: $JAVA_HOME" >&2
  exit 0
fi
if found "$(command -v java)"; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt update -qq
  for package in $PACKAGES; do
    apt-cache show "$package" >/dev/null 2>&1 || continue
    echo "installing $package for Spark"
    apt install -y -qq --no-install-recommends "$package"
    hash -r
    if found "$(command -v java)"; then exit 0; fi
  done
fi
echo "Spark needs Java 17 or 21, and none was found: install a JRE (Debian: openjdk-17-jre-headless or openjdk-21-jre-headless)" \
  "or set JAVA_HOME" >&2
