"""From redis-py's exceptions to our error tree: every one mapped once, here (SPEC 54).

Three things make this more than a table of types:
  - redis-py cuts the code off most replies and keeps it in `status_code`, but leaves it in the text of those
    it has no class for (MISCONF, NOGROUP, WRONGTYPE, ...);
  - its AuthenticationError is a ConnectionError, so authentication is asked for first;
  - an error inside a script arrives under other names: Redis 6.2 wraps the code into "ERR Error running
    script", and for NOPERM servers say "The user executing the script can't ..." or "ACL failure in script".
"""

from __future__ import annotations

import re

from redis import exceptions as client

from headrace.errors import (
    AuthFailed,
    BusyGroup,
    CommandRefused,
    HeadraceError,
    MissingRight,
    NoGroup,
    NoScript,
    ServerError,
    ServerRefused,
    ServerTooOld,
    Unavailable,
    WrongType,
)
from headrace.options import printable

TEXT_LIMIT = 300  # characters kept of what a server said

_BACK = "Headrace backs off and tries again"

# code of an error reply -> class and what to do about it
_CODES: dict[str, tuple[type[ServerError], str]] = {
    "LOADING": (Unavailable, f"the server loads its data; {_BACK}"),
    "CLUSTERDOWN": (Unavailable, f"the cluster does not serve this slot; {_BACK}"),
    "MASTERDOWN": (Unavailable, f"the replica has lost its master; {_BACK}"),
    "TRYAGAIN": (Unavailable, f"the slot is being moved; {_BACK}"),
    "READONLY": (Unavailable, f"this is a replica: connect to the master; {_BACK}"),
    "UNBLOCKED": (Unavailable, f"the server ended the wait, most likely in a failover; {_BACK}"),
    "REDIRECT": (Unavailable, f"the server hands over to another; {_BACK}"),
    "OOM": (ServerRefused, f"the server is out of memory: raise maxmemory or trim; {_BACK}"),
    "MISCONF": (ServerRefused, f"the server cannot write to its disk: free space there; {_BACK}"),
    "BUSY": (ServerRefused, f"the server is busy with a long script; {_BACK}"),
    "NOREPLICAS": (ServerRefused, f"too few replicas are connected; {_BACK}"),
    "NOGROUP": (NoGroup, "the stream or the group is not there: start a worker, which creates it"),
    "NOSCRIPT": (NoScript, "the script is not loaded: load it and repeat the call"),
    "BUSYGROUP": (BusyGroup, "the group exists: use it"),
    "WRONGTYPE": (WrongType, "the key holds something else: use another stream name or remove that key"),
    "WRONGPASS": (AuthFailed, "check user and password in the URL"),
    "NOAUTH": (AuthFailed, "the server wants a password: put user and password into the URL"),
    "DENIED": (AuthFailed, "the server is in protected mode: give it a password, and put that into the URL"),
    "MOVED": (CommandRefused, "this is a cluster: write redis+cluster:// in the URL"),
    "ASK": (CommandRefused, "this is a cluster: write redis+cluster:// in the URL"),
    "CROSSSLOT": (CommandRefused, "the keys are in several slots: give them the stream's {tag}"),
}

_TLS_REFUSED = (  # what OpenSSL calls a peer that will be refused the next time too
    "CERTIFICATE_VERIFY_FAILED",
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_CA",
    "ALERT_CERTIFICATE",  # required, expired, revoked, unknown
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_HANDSHAKE_FAILURE",  # TLS 1.2 says no more where a client certificate is missing
    "ALERT_ACCESS_DENIED",
    "UNSUPPORTED_PROTOCOL",
    "certificate verify failed",
)
_NEEDED = {"XREADGROUP", "XCLAIM", "XPENDING", "XAUTOCLAIM", "EVALSHA", "SCRIPT"}  # nothing can replace them

_CODE = re.compile(r"-?([A-Z]{2,20}) ", re.ASCII)
_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]{2,20}) (.*)", re.ASCII | re.DOTALL)
_SCRIPT_PLACE = re.compile(
    r"Error running script \(call to \w+\): |@user_script: ?\d+: | script: (?:\w+, )?on @user_script:\d+\.?"
)
_FORBIDDEN = re.compile(r"no permissions to|ACL failure in script|The user executing the script can't", re.IGNORECASE)
_ARGUMENTS = re.compile(r",? with args beginning with:.*", re.DOTALL)
_URL_SECRET = re.compile(r"(://[^\s/@:]*:)[^\s]*@")


def translate(error: Exception) -> HeadraceError:
    """Return the error of our tree that says what `error` said, and what to do. Never holds a password.

    Errors of the tree come back as they are. Raise the result `from error` where its trace helps.
    """
    if isinstance(error, HeadraceError):
        return error
    if type(error) is client.ConnectionError and isinstance(error.__cause__, client.RedisError):
        error = (
            error.__cause__
        )  # redis-py wraps what the handshake on a unix socket said: a wrong password is no outage
    text = _clean(str(error))
    if isinstance(error, (client.AuthenticationError, client.AuthorizationError)):
        return _of_code(getattr(error, "status_code", None) or "WRONGPASS", text) or AuthFailed(text)
    if isinstance(error, client.AuthenticationWrongNumberOfArgsError):
        return AuthFailed(f"{text}: this server knows no users, remove the user from the URL")
    if isinstance(error, (client.ResponseError, client.ClusterDownError)):
        return _of_reply(error, text)
    return _of_connection(error, text)


def _of_connection(error: Exception, text: str) -> HeadraceError:
    """Translate what happened on the way to the server, or in the client."""
    if "ALERT_CERTIFICATE_REQUIRED" in text:
        return AuthFailed("TLS: the server wants a client certificate: give client_cert and client_key in the URL")
    if any(mark in text for mark in _TLS_REFUSED):
        return AuthFailed(
            f"TLS: {text}: check that the port speaks TLS, that ca_cert in the URL names who signed "
            "the server's certificate, and that client_cert is given if the server wants one"
        )
    if isinstance(error, client.BusyLoadingError):
        return Unavailable(f"LOADING {text}: {_CODES['LOADING'][1]}")
    if isinstance(error, (client.CrossSlotTransactionError, client.InvalidPipelineStack)):
        return CommandRefused(f"{text}: most likely a bug of Headrace, please report it")
    away = (client.ConnectionError, client.TimeoutError, client.ClusterError, client.RedisClusterException)
    if isinstance(error, (*away, client.InvalidResponse, OSError, EOFError)):
        # an answer that makes no sense means a broken connection: the next one starts afresh
        return Unavailable(f"{text or type(error).__name__}: the server cannot be reached; {_BACK}")
    return CommandRefused(f"{type(error).__name__}: {text}: most likely a bug of Headrace, please report it")


def _of_reply(error: Exception, text: str) -> HeadraceError:
    """Translate an error reply by its code, wherever that stands."""
    code = getattr(error, "status_code", None) or _code_of(text)
    inside = _IN_SCRIPT.search(text)
    if code == "ERR" and inside is not None:
        code, text = inside[1], inside[2]
    text = _SCRIPT_PLACE.sub("", text).removeprefix(f"{code} ")
    if code == "NOPERM" or _FORBIDDEN.search(text):
        return _missing_right(text)
    unknown = re.search(r"unknown command '?`?([\w|]{1,40})", text, re.IGNORECASE)
    if unknown is not None and unknown[1].upper() in _NEEDED:
        return ServerTooOld(
            f"the server does not know {unknown[1].upper()}: Headrace needs Redis 6.2 or later, or Valkey, "
            "with the command not renamed"
        )
    return _of_code(code, text) or CommandRefused(f"{code} {text}".strip())


def _of_code(code: str, text: str) -> HeadraceError | None:
    if code not in _CODES:
        return None
    kind, advice = _CODES[code]
    return kind(f"{code} {text}: {advice}")


def _missing_right(text: str) -> MissingRight:
    """Name the right as far as the server told: new servers name the command, none the key."""
    command = re.search(r"'([^']{1,60})' command", text)
    key = re.search(r"the '([^']{1,200})' key", text)
    what = "command" if "command" in text else "channel" if "channel" in text else "key"
    grant = f"+{command[1]}" if command else f"~{key[1]}" if key else f"the {what}"
    return MissingRight(
        f"NOPERM {text}: grant {grant} to this user with ACL SETUSER",
        command=command[1] if command else "",
        key=key[1] if key else "",
    )


def _code_of(text: str) -> str:
    found = _CODE.match(text)
    return found[1] if found else "ERR"


def _clean(text: str) -> str:
    """Make a server's text safe to log: no arguments (AUTH's is a password), no URL secrets, one line."""
    safe = _URL_SECRET.sub(r"\1***@", _ARGUMENTS.sub("", text))
    line = printable(" ".join(safe.split()).rstrip("."))
    return line if len(line) <= TEXT_LIMIT else line[:TEXT_LIMIT] + "..."
