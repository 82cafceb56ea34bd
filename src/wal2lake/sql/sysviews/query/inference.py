"""Infers PostgreSQL's type of an expression, and the name of its result column.

Comes in: a node of sqlglot's tree whose children have their types. Goes out: a type OID
(``type_of``), kept in the node's ``meta``; a column name (``figure_name``). If a type cannot be
inferred, it is None, and the engine's type of the result decides.

Clients need the OIDs of catalog types that the embedded engine does not have (name, oid, regclass,
"char", pg_lsn ...), so these are inferred.

Sources: parse_target.c (FigureColname), the manual's sections 10.5 and 5.3 of each function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import Wal2LakeError
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.query.analysis.names import result_names
from wal2lake.sql.sysviews.functions.pg_proc import (
    EXPANDARRAY,
    FUNCTIONS,
    OWN_SCHEMA,
    ROW_FUNCTIONS,
)

BOOL: Final = 16
CHAR: Final = 18
NAME: Final = 19
INT8: Final = 20
INT2: Final = 21
INT2VECTOR: Final = 22
INT4: Final = 23
REGPROC: Final = 24
TEXT: Final = 25
OID: Final = 26
XID: Final = 28
OIDVECTOR: Final = 30
JSON: Final = 114
FLOAT8: Final = 701
INTERVAL: Final = 1186
BYTEA: Final = 17
UNKNOWN: Final = 705
NUMERIC: Final = 1700
RECORD: Final = 2249
PG_LSN: Final = 3220

REG_TYPES: Final = {
    2205: "regclass",
    2206: "regtype",
    4089: "regnamespace",
    4096: "regrole",
}
"""OID types that are numbers inside a query and names in its result."""

_META: Final = "pg_type"

_BOOLEAN_NODES: Final = (
    exp.Predicate,
    exp.And,
    exp.Or,
    exp.Not,
    exp.RegexpLike,
    exp.RegexpILike,
    exp.LogicalAnd,
    exp.LogicalOr,
    exp.Exists,
    exp.Boolean,
)

_SAME_AS_FIRST: Final = (
    exp.Alias,
    exp.Paren,
    exp.Min,
    exp.Max,
    exp.Nullif,
    exp.AnyValue,
    exp.First,
    exp.Order,
    exp.Distinct,
    exp.Collate,
    exp.Filter,
    exp.WithinGroup,
    exp.Window,
)

NODE_FUNCTIONS: Final[dict[type[exp.Expression], str]] = {
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
    exp.CurrentDatabase: "current_database",
    exp.CurrentCatalog: "current_catalog",
    exp.CurrentSchema: "current_schema",
    exp.CurrentVersion: "version",
    exp.CurrentTimestamp: "now",
}
"""PostgreSQL's names of functions in ``FUNCTIONS``, by sqlglot's classes for their calls."""

_NODE_NAMES: Final[dict[type[exp.Expression], str]] = {
    **NODE_FUNCTIONS,
    exp.ArraySize: "array_length",
    exp.ExplodingGenerateSeries: "generate_series",
    exp.Explode: "unnest",
    exp.Unnest: "unnest",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.Array: "array",
    exp.Interval: "interval",
    exp.Trim: "btrim",
}

_FIXED: Final[dict[str, int]] = {
    "array_upper": INT4,
    "array_lower": INT4,
    "array_length": INT4,
    "cardinality": INT4,
    "generate_subscripts": INT4,
    "json_build_object": JSON,
    "json_agg": JSON,
    "to_json": JSON,
    "row_to_json": JSON,
    "pg_typeof": 2206,
    "pg_wal_lsn_diff": NUMERIC,
    "concat": TEXT,
    "concat_ws": TEXT,
}


INTEGERS: Final = frozenset((INT2, INT4, INT8))


def get_type(node: object) -> int | None:
    """Return the type that is kept for a node."""
    if isinstance(node, exp.Expression):
        oid = node.meta.get(_META)
        return oid if isinstance(oid, int) else None
    return None


def set_type(node: exp.Expression, oid: int | None) -> None:
    """Keep a node's type."""
    if oid is not None:
        node.meta[_META] = oid


def type_of(node: exp.Expression) -> int | None:
    """Return the type of an expression whose children have their types.

    ``scopes`` types columns and subqueries first."""
    kept = get_type(node)
    if kept is not None:
        return kept
    if isinstance(node, exp.Cast):
        return cast_target(node.to)
    if isinstance(node, exp.Literal):
        return _literal(node)
    if isinstance(node, exp.ByteString):
        return UNKNOWN
    if isinstance(node, exp.Null):
        return UNKNOWN
    if isinstance(node, exp.Dot) and get_type(node.this) == RECORD:
        return dict(ROW_FUNCTIONS[EXPANDARRAY]).get(node.name)
    if isinstance(node, exp.Bracket):
        return _element(get_type(node.this), node.expressions)
    if isinstance(node, (exp.Explode, exp.Unnest)):
        inner = node.this if isinstance(node, exp.Explode) else node.expressions[0]
        return element_type(get_type(inner))
    if isinstance(node, (exp.Case, exp.If, exp.Coalesce, exp.Greatest, exp.Least)):
        return _common(node)
    if isinstance(node, exp.DPipe):
        left = get_type(node.this)
        return left if left is not None and is_array(left) else TEXT
    if isinstance(node, exp.Count):
        return INT8
    if isinstance(node, exp.Sum):
        return {INT2: INT8, INT4: INT8, INT8: NUMERIC}.get(get_type(node.this) or 0)
    if isinstance(node, (exp.Length, exp.StrPosition)):
        return INT4
    if isinstance(node, (exp.Ceil, exp.Floor, exp.Round, exp.Trunc)):
        # PostgreSQL has these functions for numeric and for double precision.
        if node.args.get("decimals") is not None:
            return NUMERIC
        argument = get_type(node.this)
        return FLOAT8 if argument not in (None, NUMERIC) else argument
    if isinstance(node, exp.Interval):
        return INTERVAL
    if isinstance(node, exp.ArrayAgg):
        return array_type(get_type(node.this))
    if isinstance(node, exp.Array):
        return _array_constructor(node)
    if isinstance(node, (exp.Sub, exp.Add, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)):
        return _arithmetic(node)
    if isinstance(node, exp.Substring) and get_type(node.this) == BYTEA:
        return BYTEA
    if isinstance(
        node, (exp.GroupConcat, exp.Concat, exp.Upper, exp.Lower, exp.Substring)
    ):
        return TEXT
    if isinstance(node, _BOOLEAN_NODES):
        return BOOL
    if isinstance(node, _SAME_AS_FIRST):
        return get_type(node.this)
    return _function(node)


def cast_target(to: exp.Expression) -> int | None:
    """Return the OID of a cast's type name; None: the node has no such type."""
    return cast_type(to)[0]


def cast_type(to: exp.Expression) -> tuple[int | None, int]:
    """Return the OID and the modifier of a cast's type name; None: the node has no such type."""
    text = to.sql(dialect="postgres")
    schema, _, name = text.rpartition(".")
    if schema.lower() == "information_schema":
        domains = {"sql_identifier": NAME, "cardinal_number": INT4}
        return domains.get(name.lower(), 1043), -1
    try:
        oid, typmod = parse_type_name(text)
    except Wal2LakeError:
        return None, -1
    return int(oid), typmod


def is_array(oid: int) -> bool:
    """Whether a type is an array type or one of the two vector types."""
    pg_type = type_by_oid(oid)
    return pg_type is not None and (pg_type.is_array or oid in (INT2VECTOR, OIDVECTOR))


def element_type(oid: int | None) -> int | None:
    """Return the type of an array's elements."""
    pg_type = None if oid is None else type_by_oid(oid)
    return int(pg_type.element_oid) or None if pg_type is not None else None


def array_type(oid: int | None) -> int | None:
    """Return the array type of an element type."""
    if oid == UNKNOWN:
        oid = TEXT
    pg_type = None if oid is None else type_by_oid(oid)
    return int(pg_type.array_oid) or None if pg_type is not None else None


def function_name(node: exp.Expression) -> str | None:
    """Return PostgreSQL's name of a called function; None if the node is no such call."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    return _NODE_NAMES.get(type(node))


def _literal(node: exp.Literal) -> int:
    if node.is_string:
        return UNKNOWN
    text = str(node.this)
    if not text.lstrip("-").isdigit():
        return NUMERIC
    number = abs(int(text))
    return INT4 if number < 1 << 31 else INT8 if number < 1 << 63 else NUMERIC


def _element(array: int | None, subscripts: list[exp.Expression]) -> int | None:
    if any(isinstance(subscript, exp.Slice) for subscript in subscripts):
        return array
    return element_type(array)


def _common(node: exp.Expression) -> int | None:
    """Return the type of a CASE, COALESCE and so on from the types of its branches."""
    if isinstance(node, exp.Case):
        branches = [branch.args.get("true") for branch in node.args.get("ifs") or ()]
        branches.append(node.args.get("default"))
    elif isinstance(node, exp.If):
        branches = [node.args.get("true"), node.args.get("false")]
    else:
        branches = [node.this, *node.expressions]
    types = [get_type(b) for b in branches if b is not None]
    known_types = [oid for oid in types if oid not in (None, UNKNOWN)]
    if known_types:
        # Branches of type name and "char" become text if the types differ.
        return known_types[0] if len(set(known_types)) == 1 else _wider(known_types)
    return TEXT if UNKNOWN in types else None


def _wider(oids: Sequence[int | None]) -> int | None:
    for oid in (TEXT, NUMERIC, INT8, INT4):
        if oid in oids:
            return oid
    return oids[0]


def _array_constructor(node: exp.Array) -> int | None:
    first = node.expressions[0] if node.expressions else None
    if isinstance(first, exp.Query):
        return array_type(get_type(first))
    return array_type(get_type(first))


def _arithmetic(node: exp.Expression) -> int | None:
    left, right = get_type(node.this), get_type(node.expression)
    if left == PG_LSN and isinstance(node, exp.Sub):
        return NUMERIC if right in (PG_LSN, UNKNOWN) else PG_LSN
    if PG_LSN in (left, right) and isinstance(node, exp.Add):
        return PG_LSN
    if left in INTEGERS and right in INTEGERS:
        return max((left, right), key=(INT2, INT4, INT8).index)
    return None


def _function(node: exp.Expression) -> int | None:
    name = function_name(node)
    if name is None:
        return None
    count = len(node.expressions) if isinstance(node, exp.Anonymous) else 0
    if name == EXPANDARRAY:
        return RECORD
    function = FUNCTIONS.get((name, count))
    return function.type_oid if function is not None else _FIXED.get(name)


# ---- names ----------------------------------------------------------------------------------


def figure_name(item: exp.Expression) -> str:
    """Return the name of a result column without AS."""
    return _figure(item)[0] or "?column?"


def _figure(item: exp.Expression) -> tuple[str | None, bool]:
    """Return the name, and whether a cast around the expression keeps it."""
    if isinstance(item, exp.Alias):
        return str(item.alias), True
    if isinstance(item, (exp.Paren, exp.Bracket, exp.Collate)):
        return _figure(item.this)
    if isinstance(item, exp.Cast):
        inner, strong = _figure(item.this)
        return (inner, True) if strong else (_type_word(item), False)
    if isinstance(item, exp.Dot) and isinstance(item.expression, exp.Identifier):
        return str(item.expression.name), True
    name = function_name(item)
    if name is not None:
        return name.removeprefix(OWN_SCHEMA), True
    if isinstance(item, (exp.Binary, *_BOOLEAN_NODES)) and not isinstance(
        item, (exp.Exists, exp.Dot)
    ):
        return None, False
    names = result_names(exp.Select(expressions=[item.copy()]))
    label = names[0] if names else None
    if label is None or label == "?column?":
        return None, False
    return label, not (isinstance(item, exp.Case) and label == "case")


def _type_word(cast: exp.Cast) -> str | None:
    """Return the type's internal name, for an array that of its elements."""
    pg_type = type_by_oid(cast_target(cast.to) or 0)
    if pg_type is not None and pg_type.is_array:
        pg_type = type_by_oid(pg_type.element_oid)
    return None if pg_type is None else pg_type.name
