"""Resolution of operators and functions by the types of their operands, in row filters.

Takes names and types; 705 is a constant without a type so far. Returns the types that the operands
are converted to, and the type of the result. The rules are those by which PostgreSQL chooses among
its operators, spelled out for the types that row filters support.

Source: oper(), func_select_candidate(), select_common_type(); pg_operator.dat, pg_proc.dat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from wal2lake.commands.publication.constants import UNKNOWN
from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError, UsageError
from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.expressions import Expression
from wal2lake.pgtypes.expressions.operators import (
    ARITHMETIC,
    COMPARISONS,
    FLOATS,
    INTEGERS,
    LIKES,
    MATCHES,
    MEMBERS,
    MOMENTS,
    NUMBERS,
    SUPPORTED_FUNCTIONS,
    SUPPORTED_OPERATORS,
    TEXTS,
)
from wal2lake.pgtypes.expressions.values import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    JSON,
    JSONB,
    NUMERIC,
    SUPPORTED,
    TEXT,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
)
from wal2lake.pgtypes.keywords import words
from wal2lake.sql.query.analysis.functions.calls import OWN_NAMES

_ORDER: Final = (INT2, INT4, INT8, NUMERIC, FLOAT4, FLOAT8)
"""Numeric types; each converts implicitly to the types after it."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Types of a binary operator."""

    left: int
    right: int
    result: int


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """Types of a function."""

    arguments: tuple[int, ...]
    result: int


# ---- errors ------------------------------------------------------------------------------


class ExpressionRefused(FeatureNotSupportedError):
    """Error positioned at the start of its expression, raised once all types are known."""


class Mutable(ExpressionRefused):
    """Error of an expression whose result depends on more than its operands."""


def refuse(detail: str) -> ExpressionRefused:
    """Return the error ``invalid publication WHERE expression``."""
    return ExpressionRefused("invalid publication WHERE expression", detail=detail)


def not_simple() -> ExpressionRefused:
    """Return the error for a kind of expression that no row filter may have."""
    return refuse(
        "Only columns, constants, built-in operators, built-in data types, built-in"
        " collations, and immutable built-in functions are allowed."
    )


def mutable() -> Mutable:
    """Return the error for a mutable function or operator."""
    return Mutable(
        "invalid publication WHERE expression",
        detail="User-defined or built-in mutable functions are not allowed.",
    )


def unsupported(construct: str) -> FeatureNotSupportedError:
    """Return the error for a construct that PostgreSQL accepts and row filters here don't."""
    types = ", ".join(sorted(format_type(oid) for oid in SUPPORTED))
    return FeatureNotSupportedError(
        f"{construct} in a publication WHERE expression is not supported",
        detail=f"Supported are the types {types}; the operators"
        f" {' '.join(SUPPORTED_OPERATORS)}, AND OR NOT IS IN BETWEEN LIKE COALESCE"
        " NULLIF GREATEST LEAST CASE; regular expressions without classes and"
        f" references; the functions {', '.join(SUPPORTED_FUNCTIONS)}, of which lower"
        ' and upper want COLLATE "C"; casts among numbers, among texts, between date'
        " and timestamp.",
    )


def missing_operator(name: str, *kinds: int) -> UndefinedObjectError:
    """Return the error 42883 for an operator."""
    names = [_name(kind) for kind in kinds]
    shown = f" {name} ".join(names) if len(kinds) > 1 else f"{name} {names[0]}"
    several = len(kinds) > 1
    return UndefinedObjectError(
        f"operator does not exist: {shown}",
        sqlstate="42883",
        hint="No operator matches the given name and argument"
        f" type{'s' if several else ''}. You might need to add"
        f" {'explicit type casts' if several else 'an explicit type cast'}.",
    )


def _name(kind: int) -> str:
    return "unknown" if kind == UNKNOWN else format_type(kind)


# ---- operators ---------------------------------------------------------------------------


def prefix_operator(name: str, kind: int) -> int:
    """Return the result type of a sign."""
    if name not in ("+", "-"):
        raise unsupported(f"operator {name}")
    if kind in NUMBERS:
        return kind
    if kind == UNKNOWN or kind not in SUPPORTED:
        raise unsupported(f"operator {name} of {_name(kind)}")
    raise missing_operator(name, kind)


def operator(name: str, left: int, right: int) -> Signature:
    """Resolve a binary operator."""
    if name not in SUPPORTED_OPERATORS:
        raise unsupported(f"operator {name}")
    if name in MEMBERS:
        return _member(name, left, right)
    for kind in (left, right):
        if kind != UNKNOWN and kind not in SUPPORTED:
            raise unsupported(f"type {format_type(kind)}")
    if name in COMPARISONS:
        signature = _comparison(left, right)
    elif name in LIKES or name in MATCHES:
        signature = _like(left, right)
    elif name == "||":
        signature = _concatenation(left, right)
    else:
        assert name in ARITHMETIC
        signature = _arithmetic(name, left, right)
    if signature is None:
        raise missing_operator(name, left, right)
    return signature


def _comparison(left: int, right: int) -> Signature | None:
    if left == UNKNOWN:
        left = TEXT if right == UNKNOWN else right
    if right == UNKNOWN:
        right = left
    if left in NUMBERS and right in NUMBERS:
        return Signature(*_numbers(left, right), BOOL)
    if left in TEXTS and right in TEXTS:
        bpchar = BPCHAR in (left, right) and TEXT not in (left, right)
        kind = BPCHAR if bpchar else TEXT
        return Signature(kind, kind, BOOL)
    if left in MOMENTS and right in MOMENTS:
        if left != right and TIMESTAMPTZ in (left, right):
            raise mutable()
        return Signature(left, right, BOOL)
    if left == right and left in (BOOL, BYTEA, UUID):
        return Signature(left, right, BOOL)
    return None


def _numbers(left: int, right: int) -> tuple[int, int]:
    """Return the types to compare: integers stay; beside a float, others become float8."""
    if left in FLOATS or right in FLOATS:
        return (
            left if left in FLOATS else FLOAT8,
            right if right in FLOATS else FLOAT8,
        )
    if NUMERIC in (left, right):
        return NUMERIC, NUMERIC
    return left, right


def _arithmetic(name: str, left: int, right: int) -> Signature | None:
    if DATE in (left, right):
        return _dates(name, left, right)
    if left in MOMENTS or right in MOMENTS:
        raise unsupported(f"operator {name} of {_name(left)} and {_name(right)}")
    if left == UNKNOWN:
        left = right
    if right == UNKNOWN:
        right = left
    if left not in NUMBERS or right not in NUMBERS:
        return None
    left, right = _numbers(left, right)
    if left in FLOATS:
        if name == "%":
            return None
        kind = FLOAT4 if left == right == FLOAT4 else FLOAT8
        return Signature(left, right, kind)
    if left == NUMERIC:
        if name == "/":
            raise unsupported("operator / of numeric")
        return Signature(NUMERIC, NUMERIC, NUMERIC)
    kind = max(left, right, key=_ORDER.index)
    if name == "%":
        return Signature(kind, kind, kind)
    return Signature(left, right, kind)


def _dates(name: str, left: int, right: int) -> Signature | None:
    if name == "-" and left == DATE and right in (DATE, UNKNOWN):
        return Signature(DATE, DATE, INT4)
    if name in "+-" and left == DATE and right in (INT2, INT4):
        return Signature(DATE, INT4, DATE)
    if name == "+" and right == DATE and left in (INT2, INT4):
        return Signature(INT4, DATE, DATE)
    if UNKNOWN in (left, right) or (left in MOMENTS and right in MOMENTS):
        raise unsupported(f"operator {name} of {_name(left)} and {_name(right)}")
    return None


def _like(left: int, right: int) -> Signature | None:
    texts = (*TEXTS, UNKNOWN)
    if BYTEA in (left, right):
        raise unsupported("LIKE of bytea")
    if left not in texts or right not in texts:
        return None
    return Signature(BPCHAR if left == BPCHAR else TEXT, TEXT, BOOL)


def _member(name: str, left: int, right: int) -> Signature:
    if left not in (JSON, JSONB):
        if left == UNKNOWN or left not in SUPPORTED:
            raise unsupported(f"operator {name} of {_name(left)}")
        raise missing_operator(name, left, right)
    result = TEXT if name == "->>" else left
    if right in (*TEXTS, UNKNOWN):
        return Signature(left, TEXT, result)
    if right in (INT2, INT4):
        return Signature(left, INT4, result)
    raise missing_operator(name, left, right)


def _concatenation(left: int, right: int) -> Signature | None:
    if BYTEA in (left, right):
        both = {left, right} <= {BYTEA, UNKNOWN}
        return Signature(BYTEA, BYTEA, BYTEA) if both else None
    texts = (*TEXTS, UNKNOWN)
    if left in texts and right in texts:
        return Signature(TEXT, TEXT, TEXT)
    if left in texts or right in texts:
        # The text form of the other operand depends on settings like DateStyle.
        raise mutable()
    return None


# ---- functions ---------------------------------------------------------------------------

_AGGREGATES: Final = words(
    """
    array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count covar_pop
    covar_samp every json_agg json_object_agg jsonb_agg jsonb_object_agg max min mode
    percentile_cont percentile_disc range_agg regr_slope stddev stddev_pop stddev_samp
    string_agg sum var_pop var_samp variance xmlagg any_value
    """
)
_SETS: Final = words(
    """
    generate_series generate_subscripts unnest regexp_matches regexp_split_to_table
    json_array_elements jsonb_array_elements string_to_table
    """
)
_MUTABLE: Final = words(
    """
    now random clock_timestamp statement_timestamp transaction_timestamp timeofday
    gen_random_uuid uuidv4 uuidv7 nextval currval lastval setval setseed current_setting
    set_config pg_backend_pid txid_current txid_current_if_assigned pg_current_xact_id
    pg_current_xact_id_if_assigned to_char to_date to_timestamp concat concat_ws format
    age current_database version
    """
)


def function(
    names: Sequence[str], word: str, kinds: Sequence[int]
) -> FunctionSignature:
    """Resolve a function. ``word``: a clause of the call, such as OVER (``RawExpression``)."""
    name = names[-1]
    if word == "OVER":
        raise UsageError("window functions are not allowed in WHERE", sqlstate="42P20")
    if name in _AGGREGATES:
        raise UsageError(
            "aggregate functions are not allowed in WHERE", sqlstate="42803"
        )
    if name in _SETS:
        raise FeatureNotSupportedError(
            "set-returning functions are not allowed in WHERE"
        )
    if name in _MUTABLE:
        raise mutable()
    signature = None
    if len(names) == 1 or names[0] == "pg_catalog":
        signature = _supported(name, kinds)
    if signature is not None:
        return signature
    shown = ", ".join(_name(kind) for kind in kinds)
    complete = name in SUPPORTED_FUNCTIONS and SUPPORTED.issuperset(kinds)
    is_known = name.upper() in OWN_NAMES or name.upper() in exp.FUNCTION_BY_NAME
    if is_known and not complete:
        raise unsupported(f"function {name}({shown})")
    raise UndefinedObjectError(
        f"function {'.'.join(names)}({shown}) does not exist",
        sqlstate="42883",
        hint="No function matches the given name and argument types. You might need to"
        " add explicit type casts.",
    )


def _supported(name: str, kinds: Sequence[int]) -> FunctionSignature | None:
    match name, len(kinds):
        case ("abs", 1) if kinds[0] in NUMBERS:
            return FunctionSignature((kinds[0],), kinds[0])
        case ("mod", 2) if all(kind in (*INTEGERS, NUMERIC) for kind in kinds):
            kind = max(kinds, key=_ORDER.index)
            return FunctionSignature((kind, kind), kind)
        case ("length" | "char_length" | "character_length" | "octet_length", 1):
            if kinds[0] in (TEXT, VARCHAR, UNKNOWN):
                return FunctionSignature((TEXT,), INT4)
            if kinds[0] == BPCHAR:
                return FunctionSignature((BPCHAR,), INT4)
            if kinds[0] == BYTEA and name in ("length", "octet_length"):
                return FunctionSignature((BYTEA,), INT4)
        case ("lower" | "upper", 1) if kinds[0] in (*TEXTS, UNKNOWN):
            return FunctionSignature((TEXT,), TEXT)
    return None


# ---- one type for several ----------------------------------------------------------------


def common_type(
    args: Sequence[Expression], place: str | None, positions: Sequence[int] = ()
) -> int:
    """Return the common type of COALESCE, CASE, IN.

    ``place`` names the construct in errors. If ``place`` is None, a mismatch is an operator's
    error. ``positions``: those of the args."""
    common = UNKNOWN
    for number, arg in enumerate(args):
        kind = arg.type_oid
        if kind in (UNKNOWN, common):
            continue
        if kind not in SUPPORTED:
            raise unsupported(f"type {format_type(kind)}")
        if common == UNKNOWN:
            common = kind
        elif common in NUMBERS and kind in NUMBERS:
            common = max(common, kind, key=_ORDER.index)
        elif common in TEXTS and kind in TEXTS:
            common = TEXT if kind == TEXT and common != VARCHAR else common
        elif common in MOMENTS and kind in MOMENTS:
            if TIMESTAMPTZ in (common, kind):
                raise mutable()
            common = max(common, kind)
        elif place is None:
            raise missing_operator("=", args[0].type_oid, kind)
        else:
            error = UsageError(
                f"{place} types {_name(common)} and {_name(kind)} cannot be matched",
                sqlstate="42804",
            )
            error.position = positions[number]
            raise error
    return TEXT if common == UNKNOWN else common
