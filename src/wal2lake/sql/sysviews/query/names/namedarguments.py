"""Arguments by their names, put where they belong.

Comes in: a query's tree, before its functions are looked at. Goes out: the same tree, in which
``f(a, c => 3)`` is ``f(a, default of b, 3)``.

Only functions of pg_catalog whose arguments have names, and which the node has, are known here.

Sources: the manual's section 4.3; MatchNamedCall() in namespace.c; pg_proc.dat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import SqlSyntaxError, UndefinedObjectError
from wal2lake.sql.sysviews.query.inference import function_name

_FALSE: Final = exp.false()

_CHANGES: Final = ("slot_name", "upto_lsn", "upto_nchanges")

_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "pg_create_logical_replication_slot": (
        *("slot_name", "plugin", "temporary", "twophase", "failover"),
    ),
    "pg_copy_logical_replication_slot": (
        *("src_slot_name", "dst_slot_name", "temporary", "plugin"),
    ),
    "pg_logical_emit_message": ("transactional", "prefix", "message", "flush"),
    "pg_logical_slot_get_changes": _CHANGES,
    "pg_logical_slot_peek_changes": _CHANGES,
    "pg_logical_slot_get_binary_changes": _CHANGES,
    "pg_logical_slot_peek_binary_changes": _CHANGES,
    "pg_replication_slot_advance": ("slot_name", "upto_lsn"),
    "pg_stat_get_replication_slot": ("slot_name",),
    "pg_stat_get_subscription": ("subid",),
    "pg_stat_get_subscription_stats": ("subid",),
    "pg_partition_ancestors": ("partitionid",),
    "pg_partition_tree": ("rootrelid",),
    "pg_terminate_backend": ("pid", "timeout"),
}

_DEFAULTS: Final[Mapping[str, Mapping[str, exp.Expression]]] = {
    "pg_create_logical_replication_slot": dict.fromkeys(
        ("temporary", "twophase", "failover"), _FALSE
    ),
    "pg_logical_emit_message": {"flush": _FALSE},
    "pg_terminate_backend": {"timeout": exp.Literal.number(0)},
}


_INTERVAL: Final = frozenset(
    ("years", "months", "weeks", "days", "hours", "mins", "secs")
)
"""Names of the arguments of make_interval(), which the parser knows by their place."""


def place(tree: exp.Expression) -> None:
    """Change the tree. 42883 if a function has no argument of a name, 42601 for a name that is
    given twice, or is in front of one without."""
    for made in tree.find_all(exp.MakeInterval):
        values = list(made.args.values())
        named = {v.this.name: v for v in values if isinstance(v, exp.Kwarg)}
        if not named.keys() <= _INTERVAL:
            raise _missing("make_interval", len(values) - len(named), named)
    for call in list(tree.find_all(exp.Anonymous)):
        if any(isinstance(one, exp.Kwarg | exp.PropertyEQ) for one in call.expressions):
            call.set("expressions", _placed(call))


def _placed(call: exp.Anonymous) -> list[exp.Expression]:
    function = function_name(call) or ""
    given: list[exp.Expression] = []
    named: dict[str, exp.Expression] = {}
    for one in call.expressions:
        if not isinstance(one, exp.Kwarg | exp.PropertyEQ):
            if named:
                raise SqlSyntaxError("positional argument cannot follow named argument")
            given.append(one)
        elif one.this.name in named:
            raise SqlSyntaxError(f'argument name "{one.this.name}" used more than once')
        else:
            named[one.this.name] = one.expression
    names = _NAMES.get(function, ())
    if not set(named) <= set(names[len(given) :]):
        raise _missing(function, len(given), named)
    last = max(names.index(name) for name in named) + 1
    for name in names[len(given) : last]:
        value = named.get(name) or _DEFAULTS.get(function, {}).get(name)
        if value is None:
            raise _missing(function, len(given), named)
        given.append(value.copy())
    return given


def _missing(
    function: str, given: int, named: Mapping[str, exp.Expression]
) -> UndefinedObjectError:
    shown = ["unknown"] * given + [f"{name} => unknown" for name in named]
    return UndefinedObjectError(
        f"function {function}({', '.join(shown)}) does not exist",
        sqlstate="42883",
        hint="No function matches the given name and argument types. You might need to add"
        " explicit type casts.",
    )
