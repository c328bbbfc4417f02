"""Options as data: name, meaning, default and how a text becomes a value. The reference in the docs is made from it.

Spark hands options over as texts, with their names in lower case. A table reads them all at once: an unknown name is
refused with the nearest known one, a bad value with the option's name, and what was left out gets its default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headrace.config import ConnectSettings
from headrace.errors import ConfigError, Unavailable
from headrace.options import did_you_mean, duration_ms, shown, size_bytes
from headrace.redis.connect import Server

Parse = Callable[[str, str], Any]
"""(text, option name) -> value; raises ConfigError."""

URL_VARIABLE = "HEADRACE_URL"
SECRET_WORDS = ("url", "redis.password", "redis.sentinel_password")


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``default`` is what a user would have written; None: nothing."""

    name: str
    meaning: str
    parse: Parse
    default: str | None = None
    aliases: tuple[str, ...] = ()


class OptionTable:
    """All options of one thing, in the order of the docs."""

    def __init__(self, what: str, options: Iterable[Option]) -> None:
        self.what = what
        self.options = tuple(options)
        self._by_word = {word.lower(): option for option in self.options for word in (option.name, *option.aliases)}

    def read(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Check and parse what the user wrote; answers every option of the table by its name."""
        texts = self.named(given)
        return {option.name: self._value(option, texts.get(option.name, option.default)) for option in self.options}

    def named(self, given: Mapping[str, str]) -> dict[str, str]:
        """What the user wrote, by the names of the docs; nothing else."""
        texts: dict[str, str] = {}
        for word, text in given.items():
            option = self._by_word.get(word.lower())
            if option is None:
                raise ConfigError(f"{self.what} has no option {shown(word)}: {self._nearest(word)}")
            if option.name in texts:
                raise ConfigError(f"{self.what}: {option.name} is given twice, as {shown(word)} too: remove one")
            texts[option.name] = text
        return texts

    def markdown(self) -> str:
        """The table for the docs."""
        rows = [f"| {self._names(option)} | {option.meaning} | {_default(option)} |" for option in self.options]
        return "\n".join(["| option | meaning | default |", "|---|---|---|", *rows])

    def _nearest(self, word: str) -> str:
        """Name the nearest option as it is spelt in the docs; names are compared in lower case."""
        said = did_you_mean(word, self._by_word)
        for lower, option in self._by_word.items():
            if said == f"did you mean {lower!r}?":
                return f"did you mean {option.name!r}?"
        return f"there are {', '.join(option.name for option in self.options)}"

    @staticmethod
    def _value(option: Option, text: str | None) -> Any:
        return None if text is None else option.parse(text, option.name)

    @staticmethod
    def _names(option: Option) -> str:
        return ", ".join(f"`{word}`" for word in (option.name, *option.aliases))


def _default(option: Option) -> str:
    return "–" if option.default is None else f"`{option.default}`"


# ── how texts are read ───────────────────────────────────────────────────────────────────────────────


def as_text(text: str, name: str) -> str:
    if not text.strip():
        raise ConfigError(f"{name} is empty: give a value, or leave the option out")
    return text


def as_truth(text: str, name: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{name} is {shown(text)}: give true or false")
    return word == "true"


def as_ms(text: str, name: str) -> int:
    """A duration, "10s" or seconds, in ms."""
    return duration_ms(text, name=name)


def as_size(text: str, name: str) -> int:
    return size_bytes(text, name=name)


def whole(least: int, most: int) -> Parse:
    """A whole number within limits."""

    def parse(text: str, name: str) -> int:
        digits = text.strip().replace("_", "")
        if not digits.isascii() or not digits.isdigit() or not least <= int(digits) <= most:
            raise ConfigError(f"{name} is {shown(text)}: give a whole number from {least:,} to {most:,}")
        return int(digits)

    return parse


def one_of(*words: str) -> Parse:
    """One of a few words, in any case."""

    def parse(text: str, name: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ConfigError(f"{name} is {shown(text)}: {did_you_mean(word, words)}")
        return word

    return parse


# ── the server, for source and sink alike ────────────────────────────────────────────────────────────

_URL_WORDS = {
    "username": "the user, given apart from the URL",
    "password": "the password, given apart from the URL; never printed",
    "db": "the number of the database, given apart from the URL",
    "ca_cert": "with `rediss://`: a file of the authorities to trust, on every machine",
    "client_cert": "with `rediss://`: a file with the certificate to show, on every machine",
    "client_key": "with `rediss://`: a file with its key",
    "verify": "with `rediss://`: `full`, or `none`, which trusts whoever answers",
    "sentinel_username": "with `redis+sentinel://` only: the user for the Sentinels themselves, not for the data",
    "sentinel_password": "with `redis+sentinel://` only: the Sentinels' own password; never printed",
}

SERVER_OPTIONS: tuple[Option, ...] = (
    Option(
        "url",
        "where the server is: `redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://`; never"
        " printed with its password."
        f" Default: the environment variable `{URL_VARIABLE}` of the driver; executors are told",
        as_text,
    ),
    *(Option(f"redis.{word}", meaning, as_text) for word, meaning in _URL_WORDS.items()),
    Option("redis.connectTimeout", "how long reaching the server and logging in may take", as_ms, "5s"),
    Option("redis.commandTimeout", "how long an answer may take", as_ms, "10s"),
)


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """How to reach the server, in a form that pickles: Spark sends it to its executors. Prints without secrets."""

    url: str
    connect_ms: int
    command_ms: int

    def server(self) -> Server:
        return Server(self.url, ConnectSettings(connect_timeout_ms=self.connect_ms, command_timeout_ms=self.command_ms))

    @property
    def options(self) -> dict[str, str]:
        """The same as options of a source or a sink."""
        times = {"redis.connectTimeout": f"{self.connect_ms}ms", "redis.commandTimeout": f"{self.command_ms}ms"}
        return {"url": self.url, **times}

    @property
    def masked(self) -> str:
        return self.server().endpoint.masked

    def unreachable(self, error: Unavailable) -> Unavailable:
        """The same for somebody who waits: nobody tries again in the background."""
        said = str(error).partition(": the server cannot be reached")[0]
        return Unavailable(f"{self.masked}: {said}: check the URL, and that the server runs")

    def __repr__(self) -> str:
        return f"Address({self.masked!r})"


def address_of(values: Mapping[str, Any]) -> Address:
    """Put the URL together from the server options, and check it. Raises ConfigError without secrets."""
    url = values["url"] or os.environ.get(URL_VARIABLE)
    if not url:
        raise ConfigError(f"no server is given: set the option url, or the environment variable {URL_VARIABLE}")
    extra = {word: values[f"redis.{word}"] for word in _URL_WORDS}
    query = "&".join(f"{word}={quote(text, safe='')}" for word, text in extra.items() if text is not None)
    if query:
        url += ("&" if "?" in url else "?") + query
    address = Address(url, values["redis.connectTimeout"], values["redis.commandTimeout"])
    address.server()  # refuses what cannot be reached this way
    return address
