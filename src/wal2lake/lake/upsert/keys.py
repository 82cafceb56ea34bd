"""Keys of a batch as small numbers, and where the table holds them.

Comes in: key columns of events, and of the table's files. Goes out: a number for each
distinct key, ascending with the key, and the places of those that are stored. DuckDB joins
them, for keys may have any types and any number of columns.

Only key columns go through DuckDB: values that nobody compares stay in Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.lake.upsert.memory import TooLarge

Index = npt.NDArray[np.int64]

_PROBE_BYTES: Final = 64 << 20
"""Keys of the table that are looked up in one query: a bound of memory, and few enough
queries that building their hash tables does not count."""

_MEMORY_LIMIT: Final = "1GB"
"""Of one batch's database, which spills beyond it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where keys are stored; a key that the table has twice is here twice."""

    key: Index
    file: Index
    """Position in the list of files given."""
    row: Index
    """Row number in that file."""


class Keys:
    """The distinct keys of one batch. A context manager: it holds a DuckDB database."""

    def __init__(self, columns: Sequence[pa.ChunkedArray], directory: str) -> None:
        """``columns``: the key's columns, as long as all events' keys together.
        What does not fit into memory is spilled below ``directory``."""
        self._names = [f"k{i}" for i in range(len(columns))]
        self._database = duckdb.connect(
            ":memory:",
            config={"memory_limit": _MEMORY_LIMIT, "temp_directory": directory},
        )
        listed = ", ".join(self._names)
        table = pa.table(dict(zip(self._names, columns, strict=True)))
        table = table.append_column("place", pa.array(np.arange(table.num_rows)))
        self._database.register("given", table)
        self._database.execute(
            f"create temp table keys as select row_number() over (order by {listed}) - 1"
            f" as number, {listed} from (select distinct {listed} from given)"
        )
        found = self._rows(
            f"select place, number from given join keys using ({listed})"
        )
        self._database.unregister("given")
        self.numbers: Index = np.empty(table.num_rows, np.int64)
        """For each key given, its number."""
        self.numbers[found["place"]] = found["number"]
        self.count = int(
            self._database.sql("select count(*) from keys").fetchall()[0][0]
        )
        """How many distinct keys there are."""

    def locate(self, scans: Iterable[pa.Table]) -> Places:
        """Find the keys in the table's files.

        Each scan is some of a file's rows: their key columns ``k0``.. in the types given
        before, with ``file`` and ``row``.
        """
        listed = ", ".join(self._names)
        found: list[dict[str, Any]] = []
        for probe in _grouped(scans):
            self._database.register("stored", probe)
            found.append(
                self._rows(
                    f"select number, file, row from stored join keys using ({listed})"
                )
            )
            self._database.unregister("stored")
        return Places(
            *(
                np.concatenate([np.zeros(0, np.int64), *(f[name] for f in found)])
                for name in ("number", "file", "row")
            )
        )

    def _rows(self, query: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._database.sql(query).fetchnumpy()
        except duckdb.OutOfMemoryException as error:
            raise TooLarge from error
        return found

    def __enter__(self) -> Keys:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()


def _grouped(scans: Iterable[pa.Table]) -> Iterator[pa.Table]:
    group: list[pa.Table] = []
    size = 0
    for scan in scans:
        group.append(scan)
        size += scan.nbytes
        if size >= _PROBE_BYTES:
            yield pa.concat_tables(group)
            group, size = [], 0
    if group:
        yield pa.concat_tables(group)
