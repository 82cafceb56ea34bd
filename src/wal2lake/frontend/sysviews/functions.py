"""PostgreSQL's catalog functions, as Python functions that the embedded engine calls.

Comes in: ``Facts``, the source and the session of the running query, through a ``Call`` that the
engine sets under its lock. Goes out: one Python function for each, which ``function_table``
registers. Names of OID types (regclass ...) are numbers inside a query; ``*_in`` reads and
``*_out`` prints them.

Sources: the manual's section 9.27 and 9.30; ruleutils.c, regproc.c, namespace.c, dbsize.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from wal2lake import __version__
from wal2lake.errors import UndefinedObjectError, UsageError, Wal2LakeError
from wal2lake.frontend.backend import SessionContext
from wal2lake.frontend.grammar import fold, quote_identifier, quote_literal
from wal2lake.frontend.parameters import SERVER_VERSION
from wal2lake.frontend.sysviews.declarations import PG_CATALOG
from wal2lake.frontend.sysviews.facts import (
    Facts,
    Relation,
    key_constraint_oid,
)
from wal2lake.frontend.sysviews.rows_cluster import DATABASE
from wal2lake.frontend.sysviews.rows_relations import index_definition
from wal2lake.frontend.sysviews.source import CatalogSource
from wal2lake.model import Lsn
from wal2lake.pgtypes import registry
from wal2lake.pgtypes.type_names import parse_type_name

VERSION: Final = f"PostgreSQL {SERVER_VERSION} (wal2lake {__version__})"


@dataclass(slots=True)
class Call:
    """What the running query may see; one at a time, under the engine's lock."""

    facts: Facts
    source: CatalogSource
    context: SessionContext
    now: datetime
    failure: Wal2LakeError | None = None
    """An error of a function: the engine's own exception has only its text."""

    def search_path(self, *, implicit: bool = True) -> list[str]:
        """The schemas that exist, in order; pg_catalog comes first unless it is listed."""
        known = set(self.facts.namespace_names.values())
        path = []
        for name in identifier_list(self.context.parameters["search_path"]):
            wanted = self.context.user if name == "$user" else name
            if wanted in known and wanted not in path:
                path.append(wanted)
        if implicit and PG_CATALOG not in path:
            path.insert(0, PG_CATALOG)
        return path

    def visible(self, relation: Relation) -> bool:
        """Whether an unqualified name means this relation."""
        for schema in self.search_path():
            found = self.facts.by_name.get((schema, relation.name))
            if found is not None:
                return found.oid == relation.oid
        return False

    def relation_named(self, text: str) -> Relation | None:
        """regclass's reading of a name, None if there is none; raises 42602."""
        schema, name = qualified_name(text)
        if schema is not None:
            return self.facts.by_name.get((schema, name))
        for candidate in self.search_path():
            found = self.facts.by_name.get((candidate, name))
            if found is not None:
                return found
        return None


def identifier_list(text: str) -> list[str]:
    """SplitIdentifierString(): names between commas, quoted or folded."""
    names = []
    rest = text.strip()
    while rest:
        if rest.startswith('"'):
            name, rest = _quoted(rest)
        else:
            name, _, tail = rest.partition(",")
            rest = rest[len(name) :] if tail or "," in rest else ""
            name = fold(name.strip())
        if name:
            names.append(name)
        rest = rest.strip().removeprefix(",").strip()
    return names


def _quoted(text: str) -> tuple[str, str]:
    at = 1
    while (at := text.find('"', at)) >= 0:
        if text[at + 1 : at + 2] != '"':
            return text[1:at].replace('""', '"'), text[at + 1 :]
        at += 2
    raise UsageError("invalid name syntax", sqlstate="42602")


def qualified_name(text: str) -> tuple[str | None, str]:
    """``schema.name`` or ``name``, quoted or folded; raises 42602."""
    parts: list[str] = []
    rest = text.strip()
    while True:
        if rest.startswith('"'):
            name, rest = _quoted(rest)
        else:
            name = rest.partition(".")[0]
            rest = rest[len(name) :]
            name = fold(name.strip())
        if not name:
            raise UsageError("invalid name syntax", sqlstate="42602")
        parts.append(name)
        rest = rest.strip()
        if not rest:
            break
        if not rest.startswith("."):
            raise UsageError("invalid name syntax", sqlstate="42602")
        rest = rest[1:].strip()
    if len(parts) == 3 and parts[0] == DATABASE:
        parts = parts[1:]
    if len(parts) > 2:
        raise UsageError(
            "improper relation name (too many dotted names): " + ".".join(parts),
            sqlstate="42601",
        )
    return (parts[0] if len(parts) == 2 else None), parts[-1]


# ---- OID types -----------------------------------------------------------------------------


def regclass_in(call: Call, value: object) -> int | None:
    """Text to pg_class.oid."""
    found = to_regclass(call, value)
    if found is None and value is not None:
        schema, name = qualified_name(str(value))
        shown = name if schema is None else f"{schema}.{name}"
        raise UndefinedObjectError(
            f'relation "{shown}" does not exist', sqlstate="42P01"
        )
    return found


def to_regclass(call: Call, value: object) -> int | None:
    """The same, null for an unknown name."""
    number = _number(value)
    if number is not None or value is None:
        return number
    found = call.relation_named(str(value))
    return None if found is None else int(found.oid)


def regclass_out(call: Call, oid: int | None) -> str | None:
    """pg_class.oid to text, qualified only where it must be."""
    if oid is None:
        return None
    relation = call.facts.by_oid.get(oid)
    if relation is None:
        return str(oid) if oid else "-"
    if call.visible(relation):
        return quote_identifier(relation.name)
    return relation.qualified


def regtype_in(call: Call, value: object) -> int | None:
    """A type's name to pg_type.oid."""
    number = _number(value)
    if number is not None or value is None:
        return number
    return int(parse_type_name(str(value))[0])


def to_regtype(call: Call, value: object) -> int | None:
    """The same, null for an unknown type."""
    try:
        return regtype_in(call, value)
    except UndefinedObjectError:
        return None


def regtype_out(call: Call, oid: int | None) -> str | None:
    """pg_type.oid to the type's SQL name."""
    if oid is None:
        return None
    known = registry.type_by_oid(oid)
    if known is None:
        return str(oid) if oid else "-"
    return registry.format_type(oid)


def regnamespace_in(call: Call, value: object) -> int | None:
    """A schema's name to pg_namespace.oid."""
    found = to_regnamespace(call, value)
    if found is None and value is not None:
        raise UndefinedObjectError(
            f'schema "{_one_name(value)}" does not exist', sqlstate="3F000"
        )
    return found


def to_regnamespace(call: Call, value: object) -> int | None:
    """The same, null for an unknown schema."""
    number = _number(value)
    if number is not None or value is None:
        return number
    found = call.facts.namespace_oid(_one_name(value))
    return None if found is None else int(found)


def regnamespace_out(call: Call, oid: int | None) -> str | None:
    """pg_namespace.oid to its name."""
    return _name_out(call.facts.namespace_names, oid)


def regrole_in(call: Call, value: object) -> int | None:
    """A role's name to pg_authid.oid."""
    found = to_regrole(call, value)
    if found is None and value is not None:
        raise UndefinedObjectError(f'role "{_one_name(value)}" does not exist')
    return found


def to_regrole(call: Call, value: object) -> int | None:
    """The same, null for an unknown role."""
    number = _number(value)
    if number is not None or value is None:
        return number
    name = _one_name(value)
    return next((int(r.oid) for r in call.facts.roles if r.name == name), None)


def regrole_out(call: Call, oid: int | None) -> str | None:
    """pg_authid.oid to its name."""
    return _name_out(call.facts.role_names, oid)


def _name_out(names: Mapping[int, str], oid: int | None) -> str | None:
    if oid is None:
        return None
    if oid in names:
        return quote_identifier(names[oid])
    return str(oid) if oid else "-"


def _number(value: object) -> int | None:
    """The OID types take numbers, and ``-`` for zero."""
    if isinstance(value, int):
        return value
    if value == "-":
        return 0
    return int(value) if isinstance(value, str) and value.isdigit() else None


def _one_name(value: object) -> str:
    return qualified_name(str(value))[1]


def regproc_oid(call: Call, name: str | None) -> int | None:
    """A function's OID: functions are known by name only, so there is none."""
    if name is None or name == "-":
        return None if name is None else 0
    raise UndefinedObjectError(f'function "{name}" does not exist', sqlstate="42883")


def pg_lsn_in(call: Call, value: object) -> int | None:
    """Text to a WAL position."""
    if value is None or isinstance(value, int):
        return value
    try:
        return int(Lsn.parse(str(value)))
    except ValueError as error:
        raise UsageError(str(error), sqlstate="22P02") from None


def pg_lsn_out(call: Call, value: int | None) -> str | None:
    """A WAL position to text."""
    return None if value is None else str(Lsn(value))


# ---- objects -------------------------------------------------------------------------------


def format_type(call: Call, oid: int | None, typmod: int | None) -> str | None:
    """A type's name with its modifier."""
    return None if oid is None else registry.format_type(oid, typmod)


def pg_get_userbyid(call: Call, oid: int | None) -> str | None:
    """A role's name."""
    if oid is None:
        return None
    return call.facts.role_names.get(oid, f"unknown (OID={oid})")


def pg_table_is_visible(call: Call, oid: int | None) -> bool | None:
    """Whether the relation is found without its schema."""
    relation = None if oid is None else call.facts.by_oid.get(oid)
    return None if relation is None else call.visible(relation)


def is_visible(call: Call, oid: int | None) -> bool | None:
    """Types, collations and the like are all in pg_catalog."""
    return None if oid is None else True


def pg_get_expr(call: Call, node: str | None, relid: int | None) -> str | None:
    """Expressions are kept as text."""
    return node


def pg_get_indexdef(
    call: Call, oid: int | None, column: int | None = 0, pretty: bool | None = False
) -> str | None:
    """An index as CREATE INDEX, or one of its columns; pretty drops a visible schema."""
    index = None if oid is None else call.facts.by_oid.get(oid)
    if index is None or index.kind != "i":
        return None
    if not column:
        table = call.facts.by_oid[index.table.oid] if index.table else index
        return index_definition(index, schema=not (pretty and call.visible(table)))
    if column > len(index.attributes):
        return None
    return quote_identifier(index.attributes[column - 1].name)


def pg_get_constraintdef(call: Call, oid: int | None) -> str | None:
    """A primary key, or NOT NULL."""
    for relation in call.facts.lake_tables():
        table = relation.table
        if table is not None and table.key and key_constraint_oid(table) == oid:
            columns = ", ".join(quote_identifier(name) for name in table.key)
            return f"PRIMARY KEY ({columns})"
        for attribute in relation.attributes:
            if attribute.not_null and attribute.not_null_oid == oid:
                return f"NOT NULL {quote_identifier(attribute.name)}"
    return None


def pg_get_replica_identity_index(call: Call, oid: int | None) -> int | None:
    """The primary key's index."""
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None or relation.kind != "r" or relation.table is None:
        return None
    for candidate in call.facts.relations:
        if candidate.kind == "i" and candidate.table is relation.table:
            return int(candidate.oid)
    return None


def pg_relation_is_publishable(call: Call, target: object) -> bool | None:
    """Lake tables could be published."""
    oid = regclass_in(call, target)
    relation = None if oid is None else call.facts.by_oid.get(oid)
    if relation is None:
        return None
    return relation.kind == "r" and relation.table is not None


def obj_description(call: Call, oid: int | None, catalog: str | None) -> str | None:
    """The only comment that there is."""
    public = call.facts.namespace_oid("public")
    if catalog == "pg_namespace" and oid is not None and oid == public:
        return "standard public schema"
    return None


def pg_encoding_to_char(call: Call, encoding: int | None) -> str | None:
    """The encodings that a node has to do with."""
    if encoding is None:
        return None
    return {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}.get(encoding, "")


def pg_char_to_encoding(call: Call, name: str | None) -> int | None:
    """The number of an encoding."""
    if name is None:
        return None
    known = {"sqlascii": 0, "utf8": 6, "unicode": 6, "latin1": 8}
    return known.get("".join(c for c in name.lower() if c.isalnum()), -1)


# ---- privileges ----------------------------------------------------------------------------


def has_table_privilege(call: Call, *arguments: object) -> bool | None:
    """Every role may use every table; the name must exist."""
    target = arguments[-2] if len(arguments) > 1 else arguments[0]
    if any(argument is None for argument in arguments):
        return None
    oid = regclass_in(call, target)
    return True if oid in call.facts.by_oid else None


def has_schema_privilege(call: Call, *arguments: object) -> bool | None:
    """Every role may use every schema."""
    if any(argument is None for argument in arguments):
        return None
    target = arguments[-2] if len(arguments) > 1 else arguments[0]
    oid = regnamespace_in(call, target)
    return True if oid in call.facts.namespace_names else None


def has_privilege(call: Call, *arguments: object) -> bool | None:
    """Databases, functions, types, columns and so on: allowed."""
    return None if any(argument is None for argument in arguments) else True


def pg_has_role(call: Call, *arguments: object) -> bool | None:
    """Superusers are members of every role, others of their own."""
    if any(argument is None for argument in arguments):
        return None
    member = call.context.user if len(arguments) == 2 else arguments[0]
    role = arguments[-2]
    found = next((r for r in call.facts.roles if member in (r.name, int(r.oid))), None)
    if found is None:
        raise UndefinedObjectError(f'role "{member}" does not exist')
    return found.superuser or role in (found.name, int(found.oid))


# ---- sizes -----------------------------------------------------------------------------------


def pg_table_size(call: Call, target: object) -> int | None:
    """Bytes of a lake table's current files; 0 if they are not known."""
    if target is None:
        return None
    oid = regclass_in(call, target)
    relation = call.facts.by_oid.get(oid or 0)
    if relation is None:
        return None
    if relation.kind != "r" or relation.table is None:
        return 0
    return call.source.table_bytes(relation.oid) or 0


def pg_database_size(call: Call, target: object) -> int | None:
    """All lake tables."""
    if target is None:
        return None
    return sum(call.source.table_bytes(r.oid) or 0 for r in call.facts.lake_tables())


def pg_size_pretty(call: Call, size: float | None) -> str | None:
    """A size for people; each unit is used up to 10,239 of it, as PostgreSQL does."""
    if size is None:
        return None
    number = int(size)
    if abs(number) < 10 * 1024:
        return f"{number} bytes"
    # From here the number is kept doubled, so that halves round away from zero.
    doubled = number // 512 if number >= 0 else -(-number // 512)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        last = unit == "PB"
        if last or abs(doubled) < 20 * 1024 - 1:
            half = (abs(doubled) + 1) // 2
            return f"{half if doubled >= 0 else -half} {unit}"
        doubled = doubled // 1024 if doubled >= 0 else -(-doubled // 1024)
    return None


# ---- the session -------------------------------------------------------------------------------


def current_setting(
    call: Call, name: str | None, missing_ok: bool | None = False
) -> str | None:
    """SHOW as a function."""
    if name is None:
        return None
    if missing_ok and name not in call.context.parameters:
        return None
    return call.context.parameters[name]


def set_config(
    call: Call, name: str | None, value: str | None, is_local: bool | None
) -> str | None:
    """SET as a function; a null value resets."""
    if name is None:
        raise UsageError("SET requires parameter name", sqlstate="22004")
    if value is None:
        call.context.parameters.reset(name, local=bool(is_local))
    else:
        call.context.parameters.set(name, value, local=bool(is_local))
    return call.context.parameters[name]


def current_schema(call: Call) -> str | None:
    """The first schema of the search path."""
    return next(iter(call.search_path(implicit=False)), None)


def current_schemas(call: Call, implicit: bool | None) -> list[str] | None:
    """The schemas of the search path."""
    return None if implicit is None else call.search_path(implicit=implicit)


def pg_client_encoding(call: Call) -> str:
    """The client's encoding."""
    return call.context.parameters["client_encoding"]


# ---- text ------------------------------------------------------------------------------------


def array_to_string(
    call: Call, items: list[str | None] | None, separator: str | None, null: str | None
) -> str | None:
    """The elements in one text; nulls are left out unless there is a text for them."""
    if items is None or separator is None:
        return None
    shown = (null if item is None else item for item in items)
    return separator.join(item for item in shown if item is not None)


def quote_ident(call: Call, text: str | None) -> str | None:
    """A name as an identifier."""
    return None if text is None else quote_identifier(text)


def quote_literal_function(call: Call, value: object) -> str | None:
    """A value as a string constant."""
    return None if value is None else quote_literal(str(value)).lstrip()


def quote_nullable(call: Call, value: object) -> str:
    """The same; NULL for null."""
    return quote_literal_function(call, value) or "NULL"


def format_function(call: Call, template: str | None, *values: object) -> str | None:
    """format(): %s, %I, %L and %%, with positions."""
    if template is None:
        return None
    out: list[str] = []
    given = list(values)
    at = taken = 0
    while (mark := template.find("%", at)) >= 0:
        out.append(template[at:mark])
        at = mark + 1
        digits = ""
        while template[at : at + 1].isdigit():
            digits += template[at]
            at += 1
        if digits and template[at : at + 1] == "$":
            at += 1
            position = int(digits)
        else:
            position = 0
        kind = template[at : at + 1]
        at += 1
        if kind == "%":
            out.append("%")
            continue
        if kind not in ("s", "I", "L"):
            raise UsageError(
                f'unrecognized format() type specifier "{kind}"'
                if kind
                else "unterminated format() type specifier",
            )
        taken = position or taken + 1
        if taken > len(given):
            raise UsageError("too few arguments for format()")
        out.append(_formatted(kind, given[taken - 1]))
    out.append(template[at:])
    return "".join(out)


def _formatted(kind: str, value: object) -> str:
    text = ("t" if value else "f") if isinstance(value, bool) else str(value)
    if kind == "I":
        if value is None:
            raise UsageError("null values cannot be formatted as an SQL identifier")
        return quote_identifier(text)
    if kind == "L":
        return "NULL" if value is None else quote_literal(text).lstrip()
    return "" if value is None else text
