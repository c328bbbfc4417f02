"""Which SQL expressions a pipeline file may hold: values and rules about columns, and nothing that does anything.

Spark's expressions can call Java by name (reflect) or read other tables (subqueries). A pipeline file is data, so only
functions of a list are let through, and no query. Nothing may ask for the time of the run either, or for who runs it: a
batch that is repeated must come out the same, or its books never balance again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from headrace.errors import ConfigError
from headrace.options import did_you_mean, shown

LIMIT: Final = 2_000  # characters

_WORDS: Final = """
abs ceil ceiling floor round bround sqrt ln log10 pow power sign signum least greatest mod nanvl isnan
coalesce nullif nvl nvl2 if ifnull isnull isnotnull
lower upper trim ltrim rtrim length char_length octet_length substring substr left right concat concat_ws replace
split split_part regexp regexp_like rlike regexp_extract regexp_replace startswith endswith contains position instr
initcap lpad rpad translate reverse
to_date to_timestamp try_to_timestamp date_trunc trunc date_format hour minute second day dayofweek dayofmonth
dayofyear month quarter year weekofyear unix_timestamp unix_millis timestamp_millis timestamp_seconds datediff
date_add date_sub add_months months_between make_date make_timestamp date timestamp
cast try_cast int bigint double float decimal string boolean
try_add try_subtract try_multiply try_divide
array array_contains size element_at map_keys map_values get_json_object to_json
md5 sha1 sha2 xxhash64 crc32 hex unhex base64 unbase64
is_valid_utf8 in and or not between like case when then else end interval
"""
FUNCTIONS: Final = frozenset(_WORDS.split())  # and the words of SQL that a bracket may follow
_BARE_WORDS: Final = """
current_catalog current_database current_date current_path current_schema current_time current_timestamp current_user
localtime localtimestamp session_user user
"""
BARE: Final = frozenset(_BARE_WORDS.split())  # functions without brackets, for Spark, unless a column is called so
_REFUSED: Final = frozenset({"select", "from", "with", "transform", "using", "exists", "table", "lateral", "values"})

# A text in quotes, as Spark reads it. A letter before the quote (r'...') would change how it is read: where we see a
# text Spark could see a call, so that is refused, as is every character that no expression needs.
_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_PREFIXED: Final = re.compile(r"[\w$]['\"]")
_BARE: Final = re.compile(r"[A-Za-z0-9_\s.,()\[\]<>=!+\-*/%|&^~:]*", re.ASCII)
_CALL: Final = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")

# Texts that are a time of the run where Spark makes a time of them, and it does so by itself beside a column of times.
_MOMENT: Final = re.compile(
    r"\s*(?:now|(?:today|tomorrow|yesterday)(?:[ \t]+\S+|[^A-Za-z\s]\S*)?)\s*", re.ASCII | re.IGNORECASE
)
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[01][0-7]{2}|.)", re.DOTALL)
_NO_ARGUMENT: Final = re.compile(r"\bunix_timestamp\s*\(\s*\)", re.IGNORECASE)
_INSTEAD: Final = (
    "which changes from run to run, and a batch that is repeated must come out the same: use a time of the row, "
    "such as entry_at, when the entry was added"
)


def check_expression(text: object, *, name: str) -> str:
    """Return the expression if it only computes with columns. Raises ConfigError.

    >>> check_expression("amount > 0 and lower(currency) <> 'xts'", name="rule")
    "amount > 0 and lower(currency) <> 'xts'"
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{name} is {shown(text)}: write a SQL expression in quotes, such as 'amount > 0'")
    if len(text) > LIMIT:
        raise ConfigError(f"{name} has {len(text):,} characters: at most {LIMIT:,} are allowed")
    _check_quotes(text, name)
    bare = _TEXT.sub(" ", text)
    if any(mark in bare for mark in (";", "--", "/*", "->", "'", '"', "`")):
        raise ConfigError(
            f"{name} {shown(text)} holds a comment, a lambda, a backquote, an open quote or a semicolon: remove it"
        )
    if not _BARE.fullmatch(bare):
        strange = sorted({char for char in bare if not _BARE.fullmatch(char)})
        raise ConfigError(f"{name} {shown(text)} holds {shown(strange[0])} outside of quotes: remove it")
    for word in _WORD.findall(bare):
        if word.lower() in _REFUSED:
            raise ConfigError(f"{name} {shown(text)} holds {word!r}: an expression may not query anything")
    for function in _CALL.findall(bare):
        if function.lower() not in FUNCTIONS:
            raise ConfigError(f"{name} may not call {function!r}: {did_you_mean(function, FUNCTIONS)}")
    _check_moments(text, name)
    return text


def _check_quotes(text: str, name: str) -> None:
    """Refuse what would let Spark read another text than we do."""
    if _PREFIXED.search(_TEXT.sub("''", text)):
        raise ConfigError(f"{name} {shown(text)} holds a letter right before a quote, as in r'...': put a space there")
    texts = list(_TEXT.finditer(text))
    if any(not text[one.end() : other.start()].strip() for one, other in pairwise(texts)):
        raise ConfigError(f"{name} {shown(text)} holds two texts side by side, which are one for Spark: write one")


def _check_moments(text: str, name: str) -> None:
    """Refuse what stands for the time of the run. A text is refused wherever it stands: only Spark knows its types.

    One that is put together from pieces, as by concat, is not recognised.
    """
    if _NO_ARGUMENT.search(_TEXT.sub("''", text)):
        raise ConfigError(f"{name} {shown(text)} asks unix_timestamp() for the time of the run, {_INSTEAD}")
    for quoted in _TEXT.findall(text):
        meant = "".join(char if char.isprintable() else " " for char in _unescaped(quoted[1:-1]))
        if _MOMENT.fullmatch(meant):
            word = meant.split()[0].lower()
            raise ConfigError(
                f"{name} {shown(text)} holds {shown(quoted[1:-1])}, for Spark the time of the run, {_INSTEAD}; "
                f"where only the word is meant, write rlike '^{word}$'"
            )


def _unescaped(text: str) -> str:
    """A text as Spark reads it: \\uXXXX, \\UXXXXXXXX and three octal digits are characters, \\t and its like blanks."""

    def one(found: re.Match[str]) -> str:
        escape = found[0][1:]
        if escape[0] in "uU" and len(escape) > 1:
            code = int(escape[1:], 16)
            return chr(code) if code <= sys.maxunicode else " "
        return chr(int(escape, 8)) if len(escape) == 3 else " " if escape in "0bnrtZ" else escape

    return _ESCAPE.sub(one, text)


def check_bare_words(text: str, columns: Iterable[str], *, name: str) -> None:
    """Refuse words that are functions without brackets, but for those that are columns: a column goes first."""
    known = {column.lower() for column in columns}
    for word in _WORD.findall(_TEXT.sub(" ", text)):
        if word.lower() in BARE and word.lower() not in known:
            raise ConfigError(
                f"{name} {shown(text)} uses {word}, and no column is called so at that place: Spark takes it for a "
                f"function, {_INSTEAD}"
            )
