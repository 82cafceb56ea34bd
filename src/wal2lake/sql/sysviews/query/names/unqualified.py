"""Removes schemas and tables from the names of a catalog query.

Comes in: a query's tree as it was parsed. Goes out: the same tree, in which functions do not name
``pg_catalog``, columns do not name their table's schema, and some calls that sqlglot has classes
for are plain calls. Called by ``rewrite``, before the tree is typed.

Sources: the manual's sections 4.2.1, 4.2.5 and 4.2.6.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.sql.query.dialect import WRITTEN, PostgresDialect
from wal2lake.sql.query.qualified import cut_schemas
from wal2lake.sql.sysviews.declarations.relations import system_relation
from wal2lake.sql.sysviews.functions.pg_proc import OWN_SCHEMA


def unqualify(tree: exp.Expression) -> None:
    """Remove pg_catalog from functions and collations, and schemas from columns."""
    entries: dict[str, set[str | None]] = {}
    for table in tree.find_all(exp.Table):
        relation = system_relation(table.db or None, table.name)
        schemas = entries.setdefault(table.alias_or_name, set())
        schemas.add(None if relation is None else relation.schema)
    cut_schemas(tree, entries)
    nodes = tree.find_all(exp.Dot, exp.Operator, exp.Collate, exp.Column, *_TYPED_CALLS)
    for node in reversed(list(nodes)):
        if isinstance(node, _TYPED_CALLS):
            node.replace(_untyped_call(node))
        elif isinstance(node, exp.Dot):
            called = node.expression
            if isinstance(called, exp.Func) and node.this.name == "pg_catalog":
                if WRITTEN in called.meta:
                    called.meta[WRITTEN] = f"pg_catalog.{called.meta[WRITTEN]}"
                node.replace(_aggregate(called) or called)
            elif isinstance(called, exp.Anonymous) and node.this.name == "wal2lake":
                called.set("this", f"{OWN_SCHEMA}{called.name.lower()}")
                node.replace(called)
        elif isinstance(node, exp.Operator):
            name = str(node.args["operator"]).rpartition(".")[2].strip()
            raise FeatureNotSupportedError(f'operator "{name}" is not supported')
        elif isinstance(node, exp.Collate):
            # Text compares by its bytes here, whichever collation the query names.
            node.replace(node.this)
        elif (
            node.name in ("user", "current_role")
            and not node.table
            and not node.this.quoted
        ):
            node.replace(exp.Anonymous(this=node.name))


_TYPED_CALLS: Final = (
    exp.ArrayToString,
    exp.CurrentRole,
    exp.CurrentSchemas,
    exp.Decode,
    exp.Encode,
    exp.Format,
)
"""sqlglot's classes for functions that are in ``FUNCTIONS``."""


def _aggregate(call: exp.Expression) -> exp.Expression | None:
    """sqlglot's own node for an aggregate function, which it makes only without a schema."""
    if not isinstance(call, exp.Anonymous):
        return None
    # A node that is made takes its arguments away from the call.
    arguments = [argument.copy() for argument in call.expressions]
    build = PostgresDialect.Parser.FUNCTIONS.get(call.name.upper())
    if call.name.lower() == "string_agg" and len(arguments) == 2:
        made: Any = exp.GroupConcat(this=arguments[0], separator=arguments[1])
    elif build is None:
        return None
    else:
        try:
            made = build(arguments)
        except (TypeError, IndexError):
            return None
    if not isinstance(made, exp.AggFunc) or made.error_messages(arguments):
        return None
    made.meta.update(call.meta)
    return made


def _untyped_call(node: exp.Expression) -> exp.Expression:
    parts = [node.this, *node.expressions]
    parts += [node.args.get(name) for name in ("expression", "null", "charset")]
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(node).__name__).lower()
    arguments = [part for part in parts if isinstance(part, exp.Expression)]
    call = exp.Anonymous(this=name, expressions=arguments)
    call.meta.update(node.meta)
    return call
