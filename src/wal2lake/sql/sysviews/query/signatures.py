"""The calls of a query as the client wrote them, for errors about one of them.

Comes in: a typed tree, whose calls have their written names (``query.dialect``), and each call's
replacement for the embedded engine. Goes out: PostgreSQL's signatures, such as
``char_length(integer)``, by the names of the engine's functions that stand for the call.

The engine's error names its own function: sqlglot writes char_length() as LENGTH, and split_part()
as a subscript of STRING_SPLIT.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import ErrorLevel, exp
from sqlglot.errors import SqlglotError

from wal2lake.pgtypes.registry.pg_type import format_type
from wal2lake.sql.query.dialect import WRITTEN, EngineDialect
from wal2lake.sql.sysviews.query.inference import get_type

_ENGINE_CALL: Final = re.compile(r"(\w+)\(")


def written_name(call: exp.Expression) -> str | None:
    """Return the name that the client wrote; None if the node is no call."""
    name = call.meta.get(WRITTEN)
    return name if isinstance(name, str) else None


def argument_types(call: exp.Expression) -> str:
    """Return the types of a call's arguments, as PostgreSQL lists them."""
    return ", ".join(map(_type_name, _arguments(call)))


def _arguments(call: exp.Expression) -> list[exp.Expression]:
    arguments: list[exp.Expression] = []
    for key in call.arg_types:
        value = call.args.get(key)
        items = value if isinstance(value, list) else [value]
        arguments += [item for item in items if isinstance(item, exp.Expression)]
    return arguments


def _type_name(argument: exp.Expression) -> str:
    oid = get_type(argument)
    return "unknown" if oid is None else format_type(oid)


class Signatures:
    """Collects the signatures of a tree while it is rewritten, inner calls first."""

    def __init__(self) -> None:
        self._by_engine: dict[str, list[str]] = {}

    def add(self, call: exp.Expression, replacement: exp.Expression) -> None:
        """Add a typed call and its replacement for the engine."""
        name = written_name(call)
        if name is None:
            return
        shown = f"{name}({argument_types(call)})"
        for engine_name in dict.fromkeys(_engine_names(call, replacement)):
            self._by_engine.setdefault(engine_name, []).append(shown)

    def by_engine_name(self) -> dict[str, tuple[str, ...]]:
        """Return the signatures by the engine's names."""
        return {name: tuple(shown) for name, shown in self._by_engine.items()}


def _engine_names(call: exp.Expression, replacement: exp.Expression) -> list[str]:
    if isinstance(call, exp.Mod):
        return ["%"]
    if isinstance(call, exp.Extract):
        return ["date_part"]
    try:
        text = replacement.sql(
            dialect=EngineDialect, unsupported_level=ErrorLevel.IGNORE
        )
    except SqlglotError:
        # The whole query will fail, too.
        return []
    return _ENGINE_CALL.findall(text.lower())
