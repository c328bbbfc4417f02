"""TLS: which files and rules a connection uses, and what a server has against it.

With TLS 1.3 a client has done its part of the handshake before the server has looked at its certificate. The no of
the server comes afterwards as an alert, and what the client has written by then mostly turns it into a plain reset:
"the server cannot be reached", for ever. So whoever was cut off at its first words asks once more and only listens.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from redis import exceptions as client

from headrace.endpoint import Endpoint
from headrace.errors import AuthFailed, HeadraceError, Unavailable
from headrace.redis.faults import translate
from headrace.redis.topology import Node

ASK_S: Final = 2.0  # how long it may take to be there again
LISTEN_S: Final = 0.5  # how long a server may take to say no; one that says nothing has nothing against us


def options_of(end: Endpoint, *, verify: bool) -> dict[str, Any]:
    """What redis-py's connections are told. Raises AuthFailed where a file of the URL is of no use."""
    context_of(end, verify=verify)
    return {
        "ssl_cert_reqs": "required" if verify else "none",
        "ssl_check_hostname": verify,
        "ssl_ca_certs": end.ca_cert,
        "ssl_certfile": end.client_cert,
        "ssl_keyfile": end.client_key,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }


def context_of(end: Endpoint, *, verify: bool) -> ssl.SSLContext:
    """The same as a context. The client would call a bad file an unreachable server, and be asked again for ever: here
    it is AuthFailed. Paths are not repeated; an encrypted key asks nobody for its password."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        if end.ca_cert:
            context.load_verify_locations(end.ca_cert)
        if end.client_cert:
            context.load_cert_chain(end.client_cert, end.client_key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "no PEM file that fits"
        raise AuthFailed(
            f"TLS: a file is of no use ({why}): check the paths ca_cert, client_cert and client_key in the URL, "
            "and that the key is not encrypted"
        ) from None
    return context


def explained(end: Endpoint, node: Node, error: Exception, *, verify: bool, timeout_s: float) -> HeadraceError:
    """What it means that a connection ended before its first answer. Blocks, for a bounded time."""
    said = translate(error)
    if said is error or not isinstance(said, Unavailable) or not _is_cut(error):
        return said
    heard = _verdict(node, context_of(end, verify=verify), min(timeout_s, ASK_S))
    refused = None if heard is None else translate(heard)
    return refused if isinstance(refused, AuthFailed) else said


def _is_cut(error: Exception) -> bool:
    """Whether there was a connection, and the other side ended it: nobody there, or too slow, says nothing of TLS."""
    slow = (TimeoutError, client.TimeoutError, client.BusyLoadingError)
    return not isinstance(error, slow) and "connecting to" not in str(error)


def _verdict(node: Node, context: ssl.SSLContext, timeout_s: float) -> OSError | None:
    """What the server says to a client that has said nothing yet."""
    try:
        with (
            socket.create_connection((node.host, node.port), timeout_s) as raw,
            context.wrap_socket(raw, server_hostname=node.host) as line,
        ):
            line.settimeout(LISTEN_S)
            line.recv(1)
    except OSError as error:
        return error
    return None
