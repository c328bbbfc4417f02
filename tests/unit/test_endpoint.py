"""URLs: every topology from one (SPEC 48), no secret in anything printed (SPEC 53)."""

from __future__ import annotations

import copy
import pickle
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import Endpoint, parse_url
from headrace.errors import UrlRefused

SECRET = "s3cr3t-w0rd"


def test_one_node_by_name_address_or_default() -> None:
    """SPEC 48."""
    assert parse_url("redis://localhost").hosts == (("localhost", 6379),)
    assert parse_url("redis://10.0.0.1:7000/3") == Endpoint("tcp", (("10.0.0.1", 7000),), db=3)
    assert parse_url("redis://[::1]:7000").hosts == (("::1", 7000),)
    assert parse_url("redis://[fe80::1%eth0]").hosts == (("fe80::1%eth0", 6379),)
    assert parse_url("REDIS://host/").db == 0
    assert parse_url("redis://host?db=4").db == 4


def test_valkey_is_spelled_like_redis() -> None:
    plain, tls = parse_url("valkey://host"), parse_url("valkeys://host")
    assert (plain.kind, plain.tls, plain.hosts) == ("tcp", False, (("host", 6379),))
    assert (tls.kind, tls.tls) == ("tcp", True)


@pytest.mark.parametrize("scheme", ["unix", "redis+unix"])
def test_a_unix_socket_is_a_path(scheme: str) -> None:
    """SPEC 48."""
    found = parse_url(f"{scheme}://u:{SECRET}@/run/my%20redis.sock?db=2")
    assert (found.kind, found.path, found.db, found.hosts) == ("unix", "/run/my redis.sock", 2, ())
    assert (found.username, found.password) == ("u", SECRET)


def test_tls_is_verified_unless_the_url_says_otherwise() -> None:
    """SPEC 48."""
    found = parse_url("rediss://host:6380?ca_cert=/etc/ca.pem&client_cert=/c.pem&client_key=/k.pem")
    assert (found.tls, found.tls_insecure) == (True, False)
    assert (found.ca_cert, found.client_cert, found.client_key) == ("/etc/ca.pem", "/c.pem", "/k.pem")
    assert parse_url("rediss://host?verify=none").tls_insecure
    assert not parse_url("rediss://host?verify=full").tls_insecure


def test_sentinel_and_cluster_name_several_hosts() -> None:
    """SPEC 48."""
    found = parse_url(f"rediss+sentinel://:{SECRET}@a,b:26380/mymaster/2?sentinel_password=other")
    assert (found.kind, found.service, found.db, found.tls) == ("sentinel", "mymaster", 2, True)
    assert found.hosts == (("a", 26379), ("b", 26380))
    assert (found.password, found.sentinel_password) == (SECRET, "other")
    cluster = parse_url("redis+cluster://a:7000,[::1]:7001")
    assert (cluster.kind, cluster.hosts) == ("cluster", (("a", 7000), ("::1", 7001)))


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("redis://host", (None, None)),
        ("redis://@host", (None, None)),
        ("redis://:@host", (None, None)),
        ("redis://:pw@host", (None, "pw")),
        ("redis://user:pw@host", ("user", "pw")),
        ("redis://user:@host", ("user", "")),
        ("redis://us%40er:p%2F%3A%40%25@host", ("us@er", "p/:@%")),
        ("redis://user:p:w@host", ("user", "p:w")),
        ("redis://host?username=user&password=p%26w", ("user", "p&w")),
        ("redis://:pw@host?username=user", ("user", "pw")),
        ("redis://host?password=a+b", (None, "a+b")),
    ],
)
def test_user_and_password_are_read_and_decoded(url: str, login: tuple[str | None, str | None]) -> None:
    found = parse_url(url)
    assert (found.username, found.password) == login


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("localhost:6379", "no scheme"),
        ("http://host", "'http' is unknown"),
        ("redi://host", "did you mean 'redis'"),
        ("redis://", "host:port"),
        ("redis:///0", "host:port"),
        ("redis://host:port", "host:port"),
        ("redis://host:0", "1 to 65535"),
        ("redis://host:65536", "1 to 65535"),
        ("redis://host:999999", "host:port"),
        ("redis://::1", "host:port"),
        ("redis://[::1", "host:port"),
        ("redis://host/x", "not a number"),
        ("redis://host/-1", "not a number"),
        ("redis://host/0/1", "not a number"),
        ("redis://host/99999999999", "not a number"),
        ("redis://host/1?db=2", "twice"),
        ("redis://a,b", "redis+sentinel://"),
        ("redis://user@host", "user:password@"),
        ("redis://host?username=u", "no password"),
        ("redis://:a@host?password=b", "twice"),
        ("redis://host?passwrod=x", "did you mean 'password'"),
        ("redis://host?db", "no value"),
        ("redis://host?db=", "no value"),
        ("redis://host?db=1&db=2", "given twice"),
        ("redis://host?ca_cert=/x", "needs TLS"),
        ("rediss://host?client_key=/x", "needs client_cert"),
        ("rediss://host?verify=maybe", "neither"),
        ("rediss://host?ssl_cert_reqs=none", "write 'verify'"),
        ("redis://host?sentinel_password=x", "redis+sentinel://"),
        ("redis+sentinel://host", "no service"),
        ("redis+cluster://host/1", "database 0"),
        ("redis+cluster://" + ",".join(["h"] * 101), "101 hosts"),
        ("unix://run/redis.sock", "absolute path"),
        ("unix://", "absolute path"),
        ("redis://ho st", "white space"),
        ("redis://host\n", "white space"),
        ("redis://host\x00", "control"),
        ("redis://\ud800", "control"),
        ("redis://%ff", "UTF-8"),
        ("redis://:%00@host", "NUL"),
        ("redis://" + "h" * 5_000, "5008 characters"),
    ],
)
def test_bad_urls_are_refused_with_a_way_out(url: str, why: str) -> None:
    with pytest.raises(UrlRefused) as caught:
        parse_url(url)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("url", [None, 5, b"redis://host", ["redis://host"]])
def test_a_url_that_is_no_text_is_refused(url: object) -> None:
    with pytest.raises(UrlRefused, match="give a str"):
        parse_url(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@host",
        f"redis://:{SECRET}@host/1",
        f"redis://host?password={SECRET}",
        f"unix://:{SECRET}@/run/redis.sock",
        f"redis+sentinel://:{SECRET}@a,b/main?sentinel_password={SECRET}",
        f"rediss+cluster://u:{SECRET}@a,b?verify=none",
    ],
)
def test_a_password_is_in_nothing_that_is_printed(url: str) -> None:
    """SPEC 53."""
    found = parse_url(url)
    printed = [repr(found), str(found), f"{found}", found.masked, repr([found]), repr({"at": found})]
    assert not any(SECRET in text for text in printed)
    assert all("***" in text for text in printed)


def test_an_endpoint_copies_and_does_not_pickle() -> None:
    """SPEC 53: a pickle would hold the password, readable."""
    found = parse_url(f"redis://:{SECRET}@host")
    assert copy.copy(found) == copy.deepcopy(found) == found
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="does not pickle") as caught:
            pickle.dumps(found, protocol)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host/x",
        f"redis://:{SECRET}@host:port",
        f"redis://:{SECRET}@host:99999",
        f"redis://:a/{SECRET}@host",
        f"redis://:a?{SECRET}@host",
        f"redis://:a#{SECRET}@host",
        f"redis://:a@{SECRET}@host",
        f"redis://:a@{SECRET}",
        f"redis://:a@b/{SECRET}@host",
        f"redis://:{SECRET}",
        f"redis://{SECRET}@host",
        f"redis://:a b{SECRET}@host",
        f"redis://:%ff{SECRET}@host",
        f"redis://:{SECRET}%00@host",
        f"redis://host?password={SECRET}&db=x",
        f"redis://host?password=a&{SECRET}=b",
        f"redis://host?password=a&{SECRET}",
        f"redis://host?password=a@{SECRET}",
        f"redis://host?password={SECRET}&password=b",
        f"redis://host?paswort={SECRET}",
        f"redis://:{SECRET}@host?nonsense=1",
        f"redis://:a@host?db={SECRET}",
        f"rediss://:a@host?verify={SECRET}",
        f":{SECRET}@host",
        f"user:{SECRET}@host://x",
        f"redix://:{SECRET}@host",
        f"redis://:{SECRET}@a,b",
        f"unix://:{SECRET}@run",
        f"redis+sentinel://:{SECRET}@host",
        f"redis+cluster://:{SECRET}@host/7",
        f"redis://[{SECRET}",
        f"redis://h℀{SECRET}@",
    ],
)
def test_a_refused_url_does_not_give_its_password_away(url: str) -> None:
    """SPEC 53: neither in the text nor in the chain of errors behind it."""
    try:
        found = parse_url(url)
    except UrlRefused as refused:
        told = "".join(traceback.format_exception(refused, chain=True)) + str(refused.args)
        # the trace shows lines of source, not values; the test's own line is the only one with the name
        assert SECRET not in told
    else:
        # understood after all: then what looks like the password is a host
        assert found.password != SECRET
        assert SECRET in found.hosts[0][0]


TEXTS = st.text(alphabet="aZ0@:/?#[]%&=+ é☃\"'\\", min_size=1, max_size=20)


@given(TEXTS, TEXTS)
def test_any_encoded_user_and_password_come_back_and_stay_unseen(user: str, word: str) -> None:
    """SPEC 48, 53."""
    password = f"<<{word}>>"
    for url in (
        f"redis://{quote(user, safe='')}:{quote(password, safe='')}@host:7000/2",
        f"redis://host:7000/2?username={quote(user, safe='')}&password={quote(password, safe='')}",
    ):
        found = parse_url(url)
        assert (found.username, found.password) == (user, password)
        assert (found.hosts, found.db) == ((("host", 7000),), 2)
        assert password not in found.masked
        assert quote(password, safe="") not in found.masked


@given(st.text(alphabet="redis:/@?&=+#[]%,0aé\x00 -", max_size=40))
def test_any_text_is_read_or_refused_and_nothing_else_happens(text: str) -> None:
    for url in (text, "redis://" + text, "redis+sentinel://" + text, "unix://" + text):
        try:
            found = parse_url(url)
        except UrlRefused:
            continue
        if found.password:
            assert "***" in found.masked


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:6379/0",
        "rediss://[::1]:7000/3?ca_cert=/ca.pem&verify=none",
        "unix:///run/redis.sock?db=2",
        "redis+sentinel://a:26379,b:26380/main/1",
        "redis+cluster://a:7000,b:7001",
    ],
)
def test_a_url_without_secrets_prints_as_one_that_can_be_used(url: str) -> None:
    assert parse_url(url).masked == url
    assert parse_url(parse_url(url).masked) == parse_url(url)
