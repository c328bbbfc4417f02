"""Which columns a read has, and where each comes from.

Without a schema: ``stream string, id string, timestamp timestamp, fields map<string,binary>``. A schema of the user's
may take any of these four, and names fields of the messages otherwise, as string or binary. A field that is called
like one of the four is named with ``fields.`` before it. Types other than these are the work of a later step, which
can also say what to do with values that do not fit; here a string that is not UTF-8 gets replacement characters, and
a field that a message lacks is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructField, StructType, TimestampType

from headrace.errors import ConfigError
from headrace.options import shown

OWN_COLUMNS: Final[dict[str, DataType]] = {
    "stream": StringType(),
    "id": StringType(),
    "timestamp": TimestampType(),
    "fields": MapType(StringType(), BinaryType(), True),
}
DEFAULT: Final = StructType([StructField(name, kind, True) for name, kind in OWN_COLUMNS.items()])
FIELD_PREFIX: Final = "fields."


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns in order: own ones by name, fields by their name in the message."""

    schema: StructType
    own: tuple[str | None, ...]  # "id" and so on, or None for a field
    fields: tuple[bytes, ...]  # b"" for an own one
    text: tuple[bool, ...]  # whether a field is a string

    @property
    def arrow(self) -> Any:
        """The Arrow schema that Spark demands, to the letter."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.schema, timezone="UTC")


def layout_of(schema: StructType) -> Layout:
    """Check a schema. Raises ConfigError that names the column."""
    if not schema.fields:
        raise ConfigError("the schema has no columns: name fields of the messages, or leave the schema out")
    own: list[str | None] = []
    names: list[bytes] = []
    texts: list[bool] = []
    for column in schema.fields:
        wanted = OWN_COLUMNS.get(column.name)
        if wanted is not None:
            _check_own(column, wanted)
        elif not isinstance(column.dataType, StringType | BinaryType):
            raise ConfigError(
                f"column {shown(column.name)} is {column.dataType.simpleString()}: fields of a message are string or "
                "binary; read them as such and cast them, which can say what to do with bad values"
            )
        elif not column.nullable:
            raise ConfigError(f"column {shown(column.name)} is NOT NULL: a message may lack it, make it nullable")
        own.append(column.name if wanted is not None else None)
        names.append(b"" if wanted is not None else column.name.removeprefix(FIELD_PREFIX).encode())
        texts.append(isinstance(column.dataType, StringType))
    return Layout(schema, tuple(own), tuple(names), tuple(texts))


def _check_own(column: StructField, wanted: DataType) -> None:
    same = column.dataType.simpleString() == wanted.simpleString()
    if not same:
        raise ConfigError(
            f"column {shown(column.name)} is {column.dataType.simpleString()}, but it is {wanted.simpleString()} here; "
            f"a field of that name is read as {shown(FIELD_PREFIX + column.name)}"
        )
