"""The spellings of types in SQL: ``parse_type_name``.

Comes in: the text of a type, as after a column's name in CREATE TABLE or after ``::``.
Goes out: (type OID, typmod). Called by the SQL front end.

The grammar is PostgreSQL's for type names: keywords of several words, modifiers, ``[]`` and
ARRAY, quoted and schema-qualified names. A word that is not a keyword is a pg_type name. Errors
are PostgreSQL's. serial is not supported, because it stands for a sequence and a default.

Sources: gram.y (SimpleTypename ff.); numerictypmodin, anychar_typmodin, anytimestamp_typmod_check,
anybit_typmodin, intervaltypmodin; typenameTypeMod.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wal2lake.errors import (
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.model import Oid
from wal2lake.pgtypes.registry.pg_type import (
    INTERVAL_FULL_PRECISION,
    INTERVAL_FULL_RANGE,
    INTERVAL_MASKS,
    VARHDRSZ,
    PgType,
    format_type,
    numeric_typmod,
    type_by_name,
)

_TOKEN = re.compile(
    r'\s*(?:("(?:[^"]|"")+")|([A-Za-z_\u0080-\U0010ffff][\w$]*)|(-?\d+)|([][(),.]))'
)
_SYNONYMS = {
    "bigint": "int8",
    "boolean": "bool",
    "dec": "numeric",
    "decimal": "numeric",
    "int": "int4",
    "integer": "int4",
    "real": "float4",
    "smallint": "int2",
}
_MAX_CHAR_LENGTH = 10485760
_MAX_BIT_LENGTH = 83886080
_MAX_NUMERIC_PRECISION = 1000
_MAX_TIME_PRECISION = 6


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    kind: str
    """word (folded to lower case), quoted (unquoted text), number, punctuation."""
    offset: int


class _Words:
    """A cursor over the tokens of one type name."""

    __slots__ = ("_position", "_source", "_tokens")

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = _tokenize(source)
        self._position = 0

    def peek(self) -> _Token | None:
        return (
            self._tokens[self._position] if self._position < len(self._tokens) else None
        )

    def take(self, *words: str) -> bool:
        """Consume the given unquoted words or marks if they are the next tokens."""
        ahead = self._tokens[self._position : self._position + len(words)]
        if [t.text for t in ahead] != list(words):
            return False
        if any(t.kind == "quoted" for t in ahead):
            return False
        self._position += len(words)
        return True

    def name(self) -> _Token:
        token = self.peek()
        if token is None or token.kind not in ("word", "quoted"):
            raise self.unexpected()
        self._position += 1
        return token

    def number(self) -> int:
        token = self.peek()
        if token is None or token.kind != "number":
            raise self.unexpected()
        self._position += 1
        return int(token.text)

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise self.unexpected()

    def unexpected(self) -> SqlSyntaxError:
        token = self.peek()
        if token is None:
            error = SqlSyntaxError("syntax error at end of input")
            error.position = len(self._source) + 1
        else:
            error = SqlSyntaxError(f'syntax error at or near "{token.text}"')
            error.position = token.offset + 1
        return error


def _tokenize(source: str) -> list[_Token]:
    tokens = []
    position = 0
    end = len(source.rstrip())
    while position < end:
        match = _TOKEN.match(source, position)
        if match is None:
            position += len(source[position:]) - len(source[position:].lstrip())
            error = SqlSyntaxError(f'syntax error at or near "{source[position]}"')
            error.position = position + 1
            raise error
        quoted, word, number, mark = match.groups()
        start = match.end() - len(quoted or word or number or mark)
        if quoted:
            tokens.append(_Token(quoted[1:-1].replace('""', '"'), "quoted", start))
        elif word:
            tokens.append(_Token(word.lower(), "word", start))
        elif number:
            tokens.append(_Token(number, "number", start))
        else:
            tokens.append(_Token(mark, "punctuation", start))
        position = match.end()
    return tokens


def parse_type_name(text: str) -> tuple[Oid, int]:
    """Parse one type name to (OID, typmod); the typmod is -1 without modifier.

    Raises UndefinedObjectError (42704) for a type that is not built in, SqlSyntaxError,
    UsageError (22023) for a modifier out of range. ``position`` of a syntax error counts
    characters of ``text`` from 1. ``char`` is char(1) and ``bit`` bit(1), as in SQL.
    A time precision above 6 becomes 6; PostgreSQL does the same, with a warning.
    """
    words = _Words(text)
    pg_type, typmod = _simple_type(words)
    is_array = False
    if words.take("array"):
        is_array = True
        if words.take("["):
            words.number()
            words.expect("]")
    else:
        while words.take("["):
            is_array = True
            if not words.take("]"):
                words.number()
                words.expect("]")
    if words.peek() is not None:
        raise words.unexpected()
    if not is_array or pg_type.is_array:
        return pg_type.oid, typmod
    if not pg_type.array_oid:
        raise UndefinedObjectError(
            f"could not find array type for data type {format_type(pg_type.oid)}"
        )
    return pg_type.array_oid, typmod


def _simple_type(words: _Words) -> tuple[PgType, int]:
    first = words.peek()
    if first is not None and first.kind == "word":
        keyword_type = _keyword_type(words, first.text)
        if keyword_type is not None:
            return keyword_type
    token = words.name()
    name = token.text
    if words.take("."):
        schema, name = name, words.name().text
        if schema != "pg_catalog" or type_by_name(name) is None:
            raise UndefinedObjectError(f'type "{schema}.{name}" does not exist')
    pg_type = type_by_name(name)
    if pg_type is None or pg_type.name in ("cstring", "_cstring"):
        raise UndefinedObjectError(f'type "{name}" does not exist')
    return pg_type, _typmod(pg_type, _modifiers(words))


def _keyword_type(words: _Words, keyword: str) -> tuple[PgType, int] | None:
    """Parse a type that the grammar spells with keywords; None: it is an ordinary name."""
    if keyword in _SYNONYMS:
        words.name()
        pg_type = _named(_SYNONYMS[keyword])
        if pg_type.has_typmod:
            return pg_type, _typmod(pg_type, _modifiers(words))
        return pg_type, -1
    match keyword:
        case "double" if words.take("double", "precision"):
            return _named("float8"), -1
        case "float":
            words.name()
            return _float(_modifiers(words)), -1
        case "character" | "char" | "nchar":
            words.name()
            return _character(words)
        case "national":
            words.name()
            if not (words.take("character") or words.take("char")):
                raise words.unexpected()
            return _character(words)
        case "varchar":
            words.name()
            return _named("varchar"), _typmod(_named("varchar"), _modifiers(words))
        case "bit":
            words.name()
            pg_type = _named("varbit" if words.take("varying") else "bit")
            modifiers = _modifiers(words)
            if not modifiers and pg_type.name == "bit":
                modifiers = [1]
            return pg_type, _typmod(pg_type, modifiers)
        case "time" | "timestamp":
            words.name()
            modifiers = _modifiers(words)
            name: str = keyword
            if words.take("with", "time", "zone"):
                name += "tz"
            else:
                words.take("without", "time", "zone")
            return _named(name), _typmod(_named(name), modifiers)
        case "interval":
            words.name()
            return _named("interval"), _interval_typmod(words)
        case _:
            return None


def _named(name: str) -> PgType:
    pg_type = type_by_name(name)
    assert pg_type is not None, name
    return pg_type


def _modifiers(words: _Words) -> list[int]:
    if not words.take("("):
        return []
    numbers = [words.number()]
    while words.take(","):
        numbers.append(words.number())
    words.expect(")")
    return numbers


def _character(words: _Words) -> tuple[PgType, int]:
    pg_type = _named("varchar" if words.take("varying") else "bpchar")
    modifiers = _modifiers(words)
    if not modifiers and pg_type.name == "bpchar":
        modifiers = [1]
    return pg_type, _typmod(pg_type, modifiers)


def _float(modifiers: list[int]) -> PgType:
    if len(modifiers) > 1:
        raise SqlSyntaxError('syntax error at or near ","')
    if not modifiers:
        return _named("float8")
    bits = modifiers[0]
    if bits < 1:
        raise UsageError("precision for type float must be at least 1 bit")
    if bits > 53:
        raise UsageError("precision for type float must be less than 54 bits")
    return _named("float4" if bits <= 24 else "float8")


def _typmod(pg_type: PgType, modifiers: list[int]) -> int:
    if not modifiers:
        return -1
    if pg_type.is_array or not pg_type.has_typmod:
        raise SqlSyntaxError(
            f'type modifier is not allowed for type "{pg_type.name.removeprefix("_")}"'
        )
    if pg_type.name == "numeric":
        return _numeric_typmod(modifiers)
    if len(modifiers) != 1:
        raise UsageError("invalid type modifier")
    number = modifiers[0]
    match pg_type.name:
        case "bpchar" | "varchar" | "bit" | "varbit":
            return _length_typmod(pg_type, number)
        case "interval":
            if number < 0:
                raise UsageError(f"INTERVAL({number}) precision must not be negative")
            precision = min(number, _MAX_TIME_PRECISION)
            return INTERVAL_FULL_RANGE << 16 | precision
        case _:
            if number < 0:
                word = pg_type.name.removesuffix("tz").upper()
                zone = " WITH TIME ZONE" if pg_type.name.endswith("tz") else ""
                raise UsageError(
                    f"{word}({number}){zone} precision must not be negative"
                )
            return min(number, _MAX_TIME_PRECISION)


def _length_typmod(pg_type: PgType, length: int) -> int:
    bits = pg_type.name in ("bit", "varbit")
    word = {"bpchar": "char", "varbit": "varbit"}.get(pg_type.name, pg_type.name)
    limit = _MAX_BIT_LENGTH if bits else _MAX_CHAR_LENGTH
    if length < 1:
        raise UsageError(f"length for type {word} must be at least 1")
    if length > limit:
        raise UsageError(f"length for type {word} cannot exceed {limit}")
    return length if bits else length + VARHDRSZ


def _numeric_typmod(modifiers: list[int]) -> int:
    if len(modifiers) > 2:
        raise UsageError("invalid NUMERIC type modifier")
    precision, scale = (*modifiers, 0)[:2]
    if not 1 <= precision <= _MAX_NUMERIC_PRECISION:
        raise UsageError(
            f"NUMERIC precision {precision} must be between 1 and "
            f"{_MAX_NUMERIC_PRECISION}"
        )
    if not -_MAX_NUMERIC_PRECISION <= scale <= _MAX_NUMERIC_PRECISION:
        raise UsageError(
            f"NUMERIC scale {scale} must be between -{_MAX_NUMERIC_PRECISION} and "
            f"{_MAX_NUMERIC_PRECISION}"
        )
    return numeric_typmod(precision, scale)


def _interval_typmod(words: _Words) -> int:
    pg_type = _named("interval")
    modifiers = _modifiers(words)
    if modifiers:
        return _typmod(pg_type, modifiers)
    token = words.peek()
    if token is None or token.kind != "word" or token.text not in INTERVAL_MASKS:
        return -1
    fields = words.name().text
    if words.take("to"):
        fields = f"{fields} to {words.name().text}"
    if fields not in INTERVAL_MASKS:
        raise words.unexpected()
    precision = INTERVAL_FULL_PRECISION
    if fields.endswith("second"):
        second_modifiers = _modifiers(words)
        if second_modifiers:
            precision = _typmod(pg_type, second_modifiers) & INTERVAL_FULL_PRECISION
    return INTERVAL_MASKS[fields] << 16 | precision
