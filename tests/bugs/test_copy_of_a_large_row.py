"""The initial copy once failed at a row of more than 8 MiB with Arrow's "straddling object
straddles two block boundaries"."""

from __future__ import annotations

from wal2lake.tablesync.copy import CopyTask, _batches

TASK = CopyTask(
    conninfo="",
    application_name="",
    snapshot="",
    statement="",
    columns=("id", "v"),
    location="",
    fields=(),
    physical_fields=(),
    row_group_bytes=1,
    table="t",
    key=(),
)


def test_a_row_may_be_larger_than_a_block() -> None:
    rows = [
        (b"0", b"small"),
        (b"1", b"x" * (30 << 20)),
        (b"2", b"line\n" * (2 << 20)),
        (b"3", b""),
        (b"4", None),
    ]
    # A block is whole rows, however large the last of them is.
    blocks = [
        b"%s,%s\n" % (i, b"" if value is None else b'"%s"' % value) for i, value in rows
    ]
    found = [
        (row["c0"], row["c1"])
        for batch in _batches(TASK, iter(blocks))
        for row in batch.to_pylist()
    ]
    assert found == rows


def test_a_copy_of_no_rows_has_no_batch() -> None:
    assert list(_batches(TASK, iter([]))) == []
