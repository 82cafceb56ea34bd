"""Puts named arguments of calls into their positions.

Comes in: a query's tree, before its functions are resolved. Goes out: the same tree, in which
``f(a, c => 3)`` is ``f(a, default of b, 3)``.

The functions here are those of pg_catalog that a node has and whose arguments have names.

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
    """Change the tree.

    Raises 42883 if a function has no argument of that name, and 42601 if a name is used twice or
    precedes an argument without a name."""
    for made in tree.find_all(exp.MakeInterval):
        values = list(made.args.values())
        named = {v.this.name: v for v in values if isinstance(v, exp.Kwarg)}
        if not named.keys() <= _INTERVAL:
            raise _missing("make_interval", len(values) - len(named), named)
    for call in list(tree.find_all(exp.Anonymous)):
        if any(
            isinstance(argument, exp.Kwarg | exp.PropertyEQ)
            for argument in call.expressions
        ):
            call.set("expressions", _placed(call))


def _placed(call: exp.Anonymous) -> list[exp.Expression]:
    function = function_name(call) or ""
    arguments: list[exp.Expression] = []
    named: dict[str, exp.Expression] = {}
    for argument in call.expressions:
        if not isinstance(argument, exp.Kwarg | exp.PropertyEQ):
            if named:
                raise SqlSyntaxError("positional argument cannot follow named argument")
            arguments.append(argument)
        elif argument.this.name in named:
            raise SqlSyntaxError(
                f'argument name "{argument.this.name}" used more than once'
            )
        else:
            named[argument.this.name] = argument.expression
    names = _NAMES.get(function, ())
    if not set(named) <= set(names[len(arguments) :]):
        raise _missing(function, len(arguments), named)
    count = max(names.index(name) for name in named) + 1
    for name in names[len(arguments) : count]:
        value = named.get(name) or _DEFAULTS.get(function, {}).get(name)
        if value is None:
            raise _missing(function, len(arguments), named)
        arguments.append(value.copy())
    return arguments


def _missing(
    function: str, positional: int, named: Mapping[str, exp.Expression]
) -> UndefinedObjectError:
    arguments = ["unknown"] * positional + [f"{name} => unknown" for name in named]
    return UndefinedObjectError(
        f"function {function}({', '.join(arguments)}) does not exist",
        sqlstate="42883",
        hint="No function matches the given name and argument types. You might need to add"
        " explicit type casts.",
    )
