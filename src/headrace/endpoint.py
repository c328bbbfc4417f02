"""Where the server is, from one URL (SPEC 48), and how to say so without its password (SPEC 53).

    redis://user:password@host:6379/0                    rediss:// with TLS; valkey(s):// is the same
    unix:///run/redis.sock?db=0                          also redis+unix://
    redis+sentinel://host1:26379,host2:26379/service/0   rediss+sentinel:// with TLS
    redis+cluster://host1:7000,host2:7000                rediss+cluster:// with TLS

A URL that is refused may be refused because of a stray character in its password. So no error quotes a part
of it that could be one: not the port, not the path, not a value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NoReturn
from urllib.parse import quote, unquote

from headrace.errors import UrlRefused
from headrace.options import did_you_mean

Kind = Literal["tcp", "unix", "sentinel", "cluster"]

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
URL_LIMIT = 4_096  # characters
HOSTS_LIMIT = 100
DB_LIMIT = 2**31 - 1

_PLAIN = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}  # whether it means TLS
_SCHEMES: dict[str, tuple[Kind, bool]] = {
    **{name: ("tcp", tls) for name, tls in _PLAIN.items()},
    **{name + "+sentinel": ("sentinel", tls) for name, tls in _PLAIN.items()},
    **{name + "+cluster": ("cluster", tls) for name, tls in _PLAIN.items()},
    **dict.fromkeys(("unix", "redis+unix", "valkey+unix"), ("unix", False)),
}
_TLS_OPTIONS = ("ca_cert", "client_cert", "client_key", "verify")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_OPTIONS = ("db", "username", "password", *_TLS_OPTIONS, *_SENTINEL_OPTIONS)
_OTHER_WORDS = {  # as redis-py and redis-cli call them
    "ssl_ca_certs": "ca_cert",
    "ssl_certfile": "client_cert",
    "ssl_keyfile": "client_key",
    "ssl_cert_reqs": "verify",
    "cacert": "ca_cert",
}
_SECRETS = ("password", "sentinel_password")  # never shown, so they may hold anything
_ENCODE = "percent-encode the special characters of the password: @ is %40, / is %2F, ? is %3F, # is %23"


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """One server, or the way to find it. Made by parse_url(); prints without secrets and does not pickle."""

    kind: Kind  # how to reach it
    hosts: tuple[tuple[str, int], ...] = ()  # (host, port): one for tcp, at least one for sentinel and cluster
    path: str = ""  # of the unix socket
    db: int = 0  # database number
    username: str | None = None  # ACL user; None is the default user
    password: str | None = None  # as the server wants it, decoded
    tls: bool = False  # chain and host name are verified unless tls_insecure
    tls_insecure: bool = False  # verify=none was written in the URL
    ca_cert: str | None = None  # file with the certificates to trust, instead of the system's
    client_cert: str | None = None  # file with the certificate to show
    client_key: str | None = None  # file with its key, if it is another one
    service: str = ""  # name of the master that Sentinel watches
    sentinel_username: str | None = None  # for Sentinel itself
    sentinel_password: str | None = None
    scheme: str = "redis"  # as it was written, for printing

    @property
    def masked(self) -> str:
        """The URL for logs and pages: secrets are ***."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        user = quote(self.username, safe="") if self.username else ""
        login = f"{user}:***@" if self.password is not None else f"{user}@" if user else ""
        path = {"unix": self.path, "sentinel": f"/{self.service}/{self.db}", "cluster": ""}.get(
            self.kind, f"/{self.db}"
        )
        options = [f"db={self.db}"] if self.kind == "unix" and self.db else []
        options += [f"{word}={getattr(self, word)}" for word in _TLS_OPTIONS[:2] if getattr(self, word)]
        options += ["client_key=***"] if self.client_key else []  # where a key lies is nobody's business
        options += ["verify=none"] if self.tls_insecure else []
        options += ["sentinel_password=***"] if self.sentinel_password is not None else []
        return f"{self.scheme}://{login}{hosts}{path}" + ("?" + "&".join(options) if options else "")

    def __repr__(self) -> str:
        return f"Endpoint({self.masked!r})"

    __str__ = __repr__

    def __copy__(self) -> Endpoint:
        return self

    def __deepcopy__(self, memo: object) -> Endpoint:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Endpoint holds a password and does not pickle: hand on the URL's variable instead")


def parse_url(url: str) -> Endpoint:
    """Read a URL. Raises UrlRefused, with a text that says what to change and holds no secret.

    >>> parse_url("redis://app:s3cret@db.internal/2")
    Endpoint('redis://app:***@db.internal:6379/2')
    """
    scheme, rest = _scheme_and_rest(url)
    kind, tls = _SCHEMES[scheme]
    rest, _, query = rest.partition("?")
    options = _read_query(query, kind, tls)
    login, place = _split_login(rest)
    username, password = _read_login(login, options)
    hosts: tuple[tuple[str, int], ...] = ()
    path = tail = ""
    if kind == "unix":
        path = place
        if not place.startswith("/"):
            raise UrlRefused("the URL of a unix socket needs an absolute path: unix:///run/redis.sock")
    else:
        where, _, tail = place.partition("/")
        hosts = _read_hosts(where, kind)
    service, db = _read_place(kind, tail, options.get("db"))
    return Endpoint(
        kind=kind,
        hosts=hosts,
        path=_decode(path, "path"),
        db=db,
        username=username,
        password=password,
        tls=tls,
        tls_insecure=options.get("verify") == "none",
        ca_cert=options.get("ca_cert"),
        client_cert=options.get("client_cert"),
        client_key=options.get("client_key"),
        service=service,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        scheme=scheme,
    )


# ── the parts, from left to right ────────────────────────────────────────────────────────────────────


def _scheme_and_rest(url: str) -> tuple[str, str]:
    if not isinstance(url, str):
        raise UrlRefused(f"the URL is a {type(url).__name__}: give a str such as 'redis://localhost:6379'")
    if not url.strip():
        raise UrlRefused("the URL is empty: give one such as 'redis://localhost:6379'")
    if len(url) > URL_LIMIT:
        raise UrlRefused(f"the URL has {len(url)} characters: at most {URL_LIMIT} are allowed")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise UrlRefused(f"the URL holds white space or control characters; {_ENCODE}")
    scheme, colon, rest = url.partition("://")
    if not colon:
        raise UrlRefused("the URL has no scheme: write it as 'redis://localhost:6379'")
    if scheme.lower() not in _SCHEMES:
        # without an @ before it, what stands before :// is no password
        name = repr(scheme) if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,30}", scheme) else "written there"
        raise UrlRefused(f"the URL scheme {name} is unknown: {did_you_mean(scheme, _SCHEMES)}")
    if "#" in rest:
        raise UrlRefused(f"the URL holds a '#'; {_ENCODE}")
    return scheme.lower(), rest


def _read_query(query: str, kind: Kind, tls: bool) -> dict[str, str]:
    if "@" in query:
        raise UrlRefused(f"the URL holds an '@' after its '?'; {_ENCODE}")
    options: dict[str, str] = {}
    for item in query.split("&") if query else ():
        word, equals, value = item.partition("=")
        if word not in _OPTIONS:
            _refuse_option(word, query)
        if not equals or not value:
            raise UrlRefused(f"URL option {word} has no value: write {word}=...")
        if word in options:
            raise UrlRefused(f"URL option {word} is given twice: remove one")
        options[word] = _decode(value, word)
    _check_options(options, kind, tls)
    return options


def _refuse_option(word: str, query: str) -> NoReturn:
    # an unescaped & splits a password in two: then the second half is not quoted
    if "password" in query or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,30}", word):
        raise UrlRefused(f"the URL has an unknown option: there are {', '.join(_OPTIONS)}")
    hint = f"write {_OTHER_WORDS[word]!r}" if word in _OTHER_WORDS else did_you_mean(word, _OPTIONS)
    raise UrlRefused(f"the URL has an unknown option {word!r}: {hint}")


def _check_options(options: dict[str, str], kind: Kind, tls: bool) -> None:
    if options.get("verify", "full") not in ("none", "full"):
        raise UrlRefused("URL option verify is neither 'full' (the default) nor 'none' (insecure): write one of them")
    given = [word for word in _TLS_OPTIONS if word in options]
    if given and not tls:
        raise UrlRefused(f"URL option {given[0]} needs TLS: write rediss:// instead of redis://")
    if "client_key" in options and "client_cert" not in options:
        raise UrlRefused("URL option client_key needs client_cert: give both")
    for word in _SENTINEL_OPTIONS:
        if word in options and kind != "sentinel":
            raise UrlRefused(f"URL option {word} is for redis+sentinel:// only: remove it")


def _split_login(rest: str) -> tuple[str, str]:
    """Cut at the @, wherever a raw one may stand: a second one is part of a password nobody encoded."""
    login, at, place = rest.partition("@")
    if not at:
        return "", rest
    if "@" in place or "/" in login:
        raise UrlRefused(f"the URL holds an '@' or a '/' too many; {_ENCODE}")
    return login, place


def _read_login(login: str, options: dict[str, str]) -> tuple[str | None, str | None]:
    username, colon, password = login.partition(":")
    if login and not colon:
        # redis-cli reads it as a password, redis-py as a user: whoever wrote it should say
        raise UrlRefused("the URL has one word before its '@': write user:password@ or :password@")
    if login and ("password" in options or ("username" in options and username)):
        raise UrlRefused("the URL gives user or password twice, before its '@' and as an option: remove one")
    user = options.get("username") or _decode(username, "user") or None
    if "password" in options:
        return user, options["password"]
    if colon and (username or password):
        return user, _decode(password, "password")
    if user is not None:
        raise UrlRefused("the URL names a user and no password: add one, or ':' for a user without")
    return None, None


def _read_hosts(where: str, kind: Kind) -> tuple[tuple[str, int], ...]:
    parts = where.split(",")
    if kind == "tcp" and len(parts) > 1:
        raise UrlRefused("the URL names several hosts: write redis+sentinel:// or redis+cluster:// for that")
    if len(parts) > HOSTS_LIMIT:
        raise UrlRefused(f"the URL names {len(parts)} hosts: at most {HOSTS_LIMIT} are allowed")
    default = DEFAULT_SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT
    return tuple(_read_host(part, default) for part in parts)


def _read_host(part: str, default_port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([^\[\]:/]+))(?::([0-9]{1,5}))?", part, re.ASCII)
    if found is None:
        raise UrlRefused(f"the URL's host and port cannot be read: write host:port or [ipv6]:port; {_ENCODE}")
    port = int(found[3]) if found[3] else default_port
    if not 1 <= port <= 65_535:
        raise UrlRefused("the URL's port is out of range: give 1 to 65535")
    return found[1] or _decode(found[2], "host"), port


def _read_place(kind: Kind, tail: str, db_option: str | None) -> tuple[str, int]:
    """Read what follows the hosts: /db, or /service/db for Sentinel."""
    service = ""
    if kind == "sentinel":
        service, _, tail = tail.partition("/")
        if not service:
            raise UrlRefused("the URL names no service: write redis+sentinel://host:26379/service/0")
    if tail and db_option is not None:
        raise UrlRefused("the URL gives the database twice, as path and as option: remove one")
    text = tail or db_option or "0"
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or int(text) > DB_LIMIT:
        raise UrlRefused(f"the URL's database is not a number: write /0 after the host; {_ENCODE}")
    if kind == "cluster" and int(text):
        raise UrlRefused("a cluster has database 0 only: remove the number from the URL")
    return _decode(service, "service"), int(text)


def _decode(text: str, what: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise UrlRefused(f"the URL's {what} is not UTF-8 when percent-decoded: encode it as UTF-8") from None
    if "\x00" in decoded:
        raise UrlRefused(f"the URL's {what} holds a NUL byte: remove %00")
    if not decoded.isprintable() and what not in _SECRETS:
        raise UrlRefused(f"the URL's {what} holds a control or an invisible character: remove it")
    return decoded
