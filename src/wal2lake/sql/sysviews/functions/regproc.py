"""The OID types: names that are numbers inside a query, and pg_lsn.

Comes in: a name or a number for ``*_in``, a number for ``*_out``. Goes out: regclass, regtype,
regnamespace and regrole as numbers and as text. ``to_*`` return null if ``*_in`` would raise.

Source: src/backend/utils/adt/regproc.c; manual, section 8.19.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from wal2lake.errors import SqlSyntaxError, UndefinedObjectError, UsageError
from wal2lake.model import Lsn
from wal2lake.pgtypes.registry import pg_type
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.grammar import quote_identifier
from wal2lake.sql.sysviews.declarations.relations import PG_CATALOG
from wal2lake.sql.sysviews.functions.call import (
    Call,
    in_database,
    name_parts,
    qualified_name,
)


def regclass_in(call: Call, value: object) -> int | None:
    """Return pg_class.oid for a relation's name."""
    number = _number(value)
    if number is not None or value is None:
        return number
    relation = call.relation_named(str(value))
    oid = None if relation is None else int(relation.oid)
    if oid is None and value is not None:
        schema, name = qualified_name(str(value))
        shown = name if schema is None else f"{schema}.{name}"
        raise UndefinedObjectError(
            f'relation "{shown}" does not exist', sqlstate="42P01"
        )
    return oid


def to_regclass(call: Call, value: object) -> int | None:
    """Return pg_class.oid; null for an unknown or malformed name."""
    number = _number(value)
    if number is not None or value is None:
        return number
    with suppress_malformed():
        relation = call.relation_named(str(value))
        return None if relation is None else int(relation.oid)
    return None


@contextmanager
def suppress_malformed() -> Iterator[None]:
    """Suppress the error about a malformed name, for the ``to_*`` functions."""
    try:
        yield
    except UsageError as error:
        if error.sqlstate != "42602":
            raise


def regclass_out(call: Call, oid: int | None) -> str | None:
    """Return a relation's name, qualified only if the search path does not find it."""
    if oid is None:
        return None
    relation = call.facts.by_oid.get(oid)
    if relation is None:
        return str(oid) if oid else "-"
    if call.visible(relation):
        return quote_identifier(relation.name)
    return relation.qualified


def regtype_in(call: Call, value: object) -> int | None:
    """Return pg_type.oid for a type's name."""
    number = _number(value)
    if number is not None or value is None:
        return number
    name = str(value).strip()
    if not name:
        raise SqlSyntaxError('invalid type name ""')
    if name.count('"') % 2:
        rest = name[name.rindex('"') :]
        raise SqlSyntaxError(f'unterminated quoted identifier at or near "{rest}"')
    dotted = _DOTTED.match(name)
    if dotted is not None:
        schema, base = in_database(name_parts(dotted[0]))
        if schema not in call.facts.namespace_names.values():
            raise UndefinedObjectError(
                f'schema "{schema}" does not exist', sqlstate="3F000"
            )
        qualified = f"{quote_identifier(schema)}.{quote_identifier(base)}"
        name = qualified + name[dotted.end() :]
    return int(parse_type_name(name)[0])


_PART: Final = r'(?:"(?:[^"]|"")*"|[^\W\d][\w$]*)'

_DOTTED: Final = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})+")
"""A name with its schema."""


def to_regtype(call: Call, value: object) -> int | None:
    """Return pg_type.oid; null for an unknown type."""
    try:
        return regtype_in(call, value)
    except UndefinedObjectError:
        return None


def regtype_out(call: Call, oid: int | None) -> str | None:
    """Return a type's SQL name."""
    if oid is None:
        return None
    pg_type_row = pg_type.type_by_oid(oid)
    if pg_type_row is None:
        return str(oid) if oid else "-"
    return pg_type.format_type(oid)


def regnamespace_in(call: Call, value: object) -> int | None:
    """Return pg_namespace.oid for a schema's name."""
    number = _number(value)
    if number is not None or value is None:
        return number
    name = _one_name(value)
    oid = call.facts.namespace_oid(name)
    if oid is None:
        raise UndefinedObjectError(f'schema "{name}" does not exist', sqlstate="3F000")
    return int(oid)


def to_regnamespace(call: Call, value: object) -> int | None:
    """Return pg_namespace.oid; null for an unknown or malformed name."""
    with suppress(UndefinedObjectError), suppress_malformed():
        return regnamespace_in(call, value)
    return None


def regnamespace_out(call: Call, oid: int | None) -> str | None:
    """Return a schema's name."""
    return _name_out(call.facts.namespace_names, oid)


def regrole_in(call: Call, value: object) -> int | None:
    """Return pg_authid.oid for a role's name."""
    number = _number(value)
    if number is not None or value is None:
        return number
    name = _one_name(value)
    role = next((role for role in call.facts.roles if role.name == name), None)
    if role is None:
        raise UndefinedObjectError(f'role "{name}" does not exist')
    return int(role.oid)


def to_regrole(call: Call, value: object) -> int | None:
    """Return pg_authid.oid; null for an unknown or malformed name."""
    with suppress(UndefinedObjectError), suppress_malformed():
        return regrole_in(call, value)
    return None


def regrole_out(call: Call, oid: int | None) -> str | None:
    """Return a role's name."""
    return _name_out(call.facts.role_names, oid)


def _name_out(names: Mapping[int, str], oid: int | None) -> str | None:
    if oid is None:
        return None
    if oid in names:
        return quote_identifier(names[oid])
    return str(oid) if oid else "-"


def _number(value: object) -> int | None:
    """Return the number that a text is; ``-`` is zero; None: the text is a name."""
    if isinstance(value, int):
        return value
    if value == "-":
        return 0
    return int(value) if isinstance(value, str) and value.isdigit() else None


def _one_name(value: object) -> str:
    parts = name_parts(str(value))
    if len(parts) != 1:
        raise UsageError("invalid name syntax", sqlstate="42602")
    return parts[0]


def regproc_in(call: Call, name: str | None) -> str | None:
    """Return the name of a function or a collation; a node does not know all of them."""
    if name is None or name == "-" or name.isdigit():
        return name
    bare, mark, arguments = name.partition("(")
    parts = in_database(name_parts(bare))
    if len(parts) == 1 or parts[0] == PG_CATALOG:
        return quote_identifier(parts[-1]) + mark + arguments
    shown = ".".join(map(quote_identifier, parts))
    raise UndefinedObjectError(f'function "{shown}" does not exist', sqlstate="42883")


def regproc_oid(call: Call, name: str | None) -> int | None:
    """Raise 42883: a node knows functions by their names, and no OIDs."""
    if name is None or name == "-":
        return None if name is None else 0
    raise UndefinedObjectError(f'function "{name}" does not exist', sqlstate="42883")


def pg_lsn_in(call: Call, value: object) -> int | None:
    """Return a WAL position for its text."""
    if value is None or isinstance(value, int):
        return value
    try:
        return int(Lsn.parse(str(value)))
    except ValueError as error:
        raise UsageError(str(error), sqlstate="22P02") from None


def pg_lsn_pli(call: Call, lsn: int | None, count: object) -> int | None:
    """Return the position so many bytes after another one."""
    return _moved(lsn, count, 1, "add NaN to pg_lsn")


def pg_lsn_mii(call: Call, lsn: int | None, count: object) -> int | None:
    """Return the position so many bytes before another one."""
    return _moved(lsn, count, -1, "subtract NaN from pg_lsn")


def _moved(lsn: int | None, count: object, sign: int, what: str) -> int | None:
    if lsn is None or count is None:
        return None
    distance = Decimal(str(count))
    if distance.is_nan():
        raise UsageError(f"cannot {what}", sqlstate="22023")
    # A sum beyond 64 bits is out of range, and may not fit a Decimal's digits.
    if abs(distance) < 1 << 65:
        # numeric rounds away from zero.
        moved = int((lsn + sign * distance).to_integral_value(ROUND_HALF_UP))
        if 0 <= moved < 1 << 64:
            return moved
    raise UsageError("pg_lsn out of range", sqlstate="22023")


def pg_lsn_out(call: Call, value: int | None) -> str | None:
    """Return the text of a WAL position."""
    return None if value is None else str(Lsn(value))
