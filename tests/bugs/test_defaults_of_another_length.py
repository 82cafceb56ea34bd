"""Defaults of columns that are not sent: a random UUID went whole into a shorter column, and
CURRENT_TIMESTAMP(0) had microseconds. And random UUIDs themselves."""

from __future__ import annotations

import uuid
from typing import Any, cast

import numpy as np
import pyarrow as pa

from wal2lake.catalog import ColumnDef
from wal2lake.engine.columndefaults import EvaluatedDefaults
from wal2lake.lake.staging.defaults import Fill, Volatile, filled
from wal2lake.model import Oid

TEXT, VARCHAR, TIMESTAMPTZ = Oid(25), Oid(1043), Oid(1184)


def fill(type_oid: Oid, default: str, typmod: int = -1) -> Fill | None:
    """Without Spark; None: it would be asked."""
    nothing = cast(Any, None)
    column = ColumnDef("a", type_oid, typmod, default=default)
    return EvaluatedDefaults(nothing, nothing, nothing)._local_fill(column)


def test_a_uuid_only_where_it_fits() -> None:
    random = Fill(volatile=Volatile.UUID)
    assert fill(TEXT, "gen_random_uuid()") == random
    assert fill(TEXT, "(gen_random_uuid()::text)") == random
    for short in (
        fill(VARCHAR, "gen_random_uuid()", typmod=4 + 10),
        fill(TEXT, "gen_random_uuid()::varchar(5)"),
    ):
        assert short is not None
        assert short.error is not None
        assert short.error[0] == "0A000"


def test_a_time_of_its_own_precision() -> None:
    now = fill(TIMESTAMPTZ, "CURRENT_TIMESTAMP")
    assert now is not None
    assert now.value is not None
    assert fill(TIMESTAMPTZ, "CURRENT_TIMESTAMP(0)") is None


def test_random_uuids() -> None:
    wanted = np.array([True, False, True])
    found = filled(Fill(volatile=Volatile.UUID), wanted, pa.string())
    found.validate(full=True)
    first, nothing, second = found.to_pylist()
    assert nothing is None
    assert first != second
    for text in (first, second):
        one = uuid.UUID(text)
        assert (str(one), one.version, one.variant) == (text, 4, uuid.RFC_4122)
    none = filled(Fill(volatile=Volatile.UUID), np.zeros(2, np.bool_), pa.string())
    assert none.null_count == 2
