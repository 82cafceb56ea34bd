"""Translates casts from computed text to other types.

Comes in: an operand of type text. Goes out: an operand of the target type. Called by ``casts``;
``literals`` reads constants.

PostgreSQL's input functions and Spark's casts accept different spellings. A text in the usual
spelling, which both accept, is cast. Any other text fails the statement with 0A000.

Source: PostgreSQL manual 8.1.2, 8.5.1, 8.12.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let
from wal2lake.sql.query.values.types import Operand, Type

_DAY: Final = r"\\d{4}-\\d\\d-\\d\\d"
_CLOCK: Final = r"\\d\\d:\\d\\d:\\d\\d(\\.\\d{1,6})?"
# The patterns end with \z because Java's $ also matches before a final newline.
_SHAPES: Final = {
    t.DATE: rf"^{_DAY}\\z",
    t.TIMESTAMP: rf"^{_DAY}[ T]{_CLOCK}\\z",
    t.UUID: r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\z",
}


def read(operand: Operand, kind: Type) -> Operand:
    """Cast a computed text in the usual spelling to date, timestamp or uuid."""
    shape = _SHAPES.get(kind.oid)
    if shape is None or kind.typmod != -1:
        raise t.refuse(f"a cast from {operand.type.name} to {kind.name}")
    error = t.failure(
        "0A000", f"a cast of other texts than ISO 8601 to {kind.name} is not supported"
    )
    ddl = t.spark_name(kind)
    text = f"if(:v is null or :v rlike '{shape}', cast(:v as {ddl}), cast({error} as {ddl}))"
    return Operand(let(text, v=operand.node), kind)


_NUMBER: Final = r"^[+-]?(\\d+(\\.\\d*)?|\\.\\d+)\\z"


def numeric_of(node: exp.Expression) -> exp.Expression:
    """Cast a computed text to numeric without precision, which is canonical text."""
    error = t.failure("0A000", "a cast of this text to numeric is not supported")
    whole = "trim(leading '0' from split_part(trim(leading '+-' from :v), '.', 1))"
    fraction = "split_part(:v, '.', 2)"
    sign = "if(left(:v, 1) = '-' and translate(:v, '-0.', '') <> '', '-', '')"
    canonical = (
        f"concat({sign}, if({whole} = '', '0', {whole}),"
        f" if({fraction} = '', '', '.'), {fraction})"
    )
    return let(
        f"if(:v is null or :v rlike '{_NUMBER}', {canonical}, cast({error} as string))",
        v=node,
    )
