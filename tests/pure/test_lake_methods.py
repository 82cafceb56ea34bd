"""How often each way of writing a batch was used."""

from __future__ import annotations

from wal2lake.lake.batch.methods import Method, MethodTotals, Total


def test_totals_are_of_one_writer_and_one_table() -> None:
    totals = MethodTotals()
    totals.count("w", "/t", Method.APPEND, 10, 0.5)
    totals.count("w", "/t", Method.APPEND, 5, 0.25)
    totals.count("w", "/u", Method.UPSERT, 1, 1.0)
    totals.count("v", "/t", Method.TRUNCATE, 1, 1.0)
    assert totals.of("w", "/t") == {Method.APPEND: Total(2, 15, 0.75)}
    assert totals.of("w", "/none") == {}
