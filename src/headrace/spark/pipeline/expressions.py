"""Which SQL expressions a pipeline file may hold: values and rules about columns, and nothing that does anything.

Spark's expressions can call Java by name (reflect) or read other tables (subqueries). A pipeline file is data, so only
functions of a list are let through, and no query.
"""

from __future__ import annotations

import re
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
_REFUSED: Final = frozenset({"select", "from", "with", "transform", "using", "exists", "table", "lateral", "values"})

# A text in quotes, as Spark reads it. A letter before the quote (r'...') would change how it is read: where we see a
# text Spark could see a call, so that is refused, as is every character that no expression needs.
_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_PREFIXED: Final = re.compile(r"[\w$]['\"]")
_BARE: Final = re.compile(r"[A-Za-z0-9_\s.,()\[\]<>=!+\-*/%|&^~:]*", re.ASCII)
_CALL: Final = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


def check_expression(text: object, *, name: str) -> str:
    """Return the expression if it only computes with columns. Raises ConfigError.

    >>> check_expression("amount > 0 and lower(currency) <> 'xts'", name="rule")
    "amount > 0 and lower(currency) <> 'xts'"
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{name} is {shown(text)}: write a SQL expression in quotes, such as 'amount > 0'")
    if len(text) > LIMIT:
        raise ConfigError(f"{name} has {len(text):,} characters: at most {LIMIT:,} are allowed")
    if _PREFIXED.search(_TEXT.sub("''", text)):
        raise ConfigError(f"{name} {shown(text)} holds a letter right before a quote, as in r'...': put a space there")
    bare = _TEXT.sub(" ", text)
    if any(mark in bare for mark in (";", "--", "/*", "->", "'", '"', "`")):
        raise ConfigError(f"{name} {shown(text)} holds a comment, a lambda, an open quote or a semicolon: remove it")
    if not _BARE.fullmatch(bare):
        strange = sorted({char for char in bare if not _BARE.fullmatch(char)})
        raise ConfigError(f"{name} {shown(text)} holds {shown(strange[0])} outside of quotes: remove it")
    for word in _WORD.findall(bare):
        if word.lower() in _REFUSED:
            raise ConfigError(f"{name} {shown(text)} holds {word!r}: an expression may not query anything")
    for function in _CALL.findall(bare):
        if function.lower() not in FUNCTIONS:
            raise ConfigError(f"{name} may not call {function!r}: {did_you_mean(function, FUNCTIONS)}")
    return text
