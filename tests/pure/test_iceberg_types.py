"""The guide's table of types: each of its lines is what a mirror does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.table import StaticTable
from tests.fakes.mirrored_table import MirroredTable, now_ms

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.iceberg import IcebergMirror

pytestmark = pytest.mark.usefixtures("no_fsync")

GUIDE: Final = Path(__file__).parents[2] / "docs" / "guide" / "iceberg.md"

SAMPLES: Final[dict[str, tuple[str, str, list[Any]]]] = {
    "boolean": ("boolean", "boolean", [True, False, None]),
    "smallint": ("smallint", "int", [-32768, 32767, None]),
    "int": ("int", "int", [-(2**31), 2**31 - 1, None]),
    "bigint": ("bigint", "long", [-(2**63), 2**63 - 1, None]),
    "float": ("float", "float", [1.5, float("inf"), None]),
    "double": ("double", "double", [0.1, float("-inf"), None]),
    "decimal(p,s)": ("decimal(38,10)", "decimal(38, 10)", [Decimal("-1.5"), None]),
    "date": ("date", "date", [date(1, 1, 1), date(9999, 12, 31), None]),
    "timestamp": (
        "timestamp",
        "timestamptz",
        [datetime(2026, 11, 28, 1, 2, 3, 456789, UTC), None],
    ),
    "timestamp_ntz": (
        "timestamp_ntz",
        "timestamp",
        [datetime(2026, 11, 28, 1, 2, 3, 456789), None],
    ),
    "string": ("string", "string", ["", "Größe", None]),
    "binary": ("binary", "binary", [b"", b"\x00\xff", None]),
    "array": ("array<array<int>>", "list<list<int>>", [[[1, None], []], None]),
    "map": ("map<string,int>", "map<string, int>", [[("a", 1)], None]),
    "struct": (
        "struct<a:int,b:array<string>>",
        "struct<101: a: optional int, 102: b: optional list<string>>",
        [{"a": 1, "b": ["x"]}, None],
    ),
}
"""By the guide's name: a type in Spark's words, in pyiceberg's, and values."""

REFUSED: Final = {
    "variant": "variant",
    "intervals": "interval day to second",
    "time": "time(6)",
}


def lines() -> Iterator[tuple[str, str]]:
    """Yield each type of the guide's table, with its form in Iceberg."""
    text = GUIDE.read_text().partition(
        "| Delta | Iceberg | remarks |\n|---|---|---|\n"
    )[2]
    for line in text.partition("\n\n")[0].splitlines():
        delta, iceberg, _ = (cell.strip() for cell in line.strip("|").split("|"))
        names = [delta] if "(" in delta else delta.split(", ")
        forms = [iceberg] if "(" in iceberg else iceberg.split(", ")
        if len(forms) == 1:
            forms *= len(names)
        yield from zip(names, forms, strict=True)


TABLE: Final = dict(lines())


def mirror_of(table: MirroredTable) -> IcebergMirror:
    return IcebergMirror(table, now_ms)  # type: ignore[arg-type]


def test_the_guide_has_all_types() -> None:
    assert TABLE.keys() == SAMPLES.keys() | REFUSED.keys()
    assert {name for name, form in TABLE.items() if not form} == REFUSED.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_type_has_the_form_that_the_guide_says(name: str, tmp_path: Path) -> None:
    ddl, form, values = SAMPLES[name]
    table = MirroredTable(tmp_path / "t", [("id", "bigint"), ("v", ddl)])
    table.append({"id": list(range(len(values))), "v": values})
    mirror_of(table).mirror(table.location, table.version, None)
    mirror = StaticTable.from_metadata(f"{table.location}/_iceberg")
    kind = str(mirror.schema().find_type("v"))
    assert kind.partition("<")[0].partition("(")[0] == TABLE[name].partition("(")[0]
    if name != "struct":
        assert kind == form
    rows = mirror.scan().to_arrow().sort_by("id")["v"].to_pylist()
    assert rows == values


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_without_a_form_is_refused(name: str, tmp_path: Path) -> None:
    table = MirroredTable(tmp_path / "t", [("id", "bigint")])
    table.append({"id": [1]})
    table.define([("id", "bigint"), ("v", REFUSED[name])])
    with pytest.raises(FeatureNotSupportedError):
        mirror_of(table).mirror(table.location, table.version, None)
