"""A dropped table leaves all system catalogs and views, also those that were read before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.backends import FakeQueries, define, new_backend, new_catalog
from tests.fakes.catalog_source import FakeSource, session

from wal2lake.catalog import Catalog
from wal2lake.model import Oid
from wal2lake.sql.sysviews import SystemCatalog
from wal2lake.sql.sysviews.declarations.relations import SYSTEM

DROPPED = "30000"


class _Source:
    """What a catalog knows, and a fake source the rest."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._rest = FakeSource(table_list=[], subscription_list=[], namespace_list=[])

    def __getattr__(self, name: str) -> Any:
        known = hasattr(Catalog, name)
        return getattr(self._catalog if known else self._rest, name)


def _showing(views: SystemCatalog) -> set[str]:
    """The relations with a row that has the table's OID or its name."""
    found = set()
    for schema, name in SYSTEM:
        _, rows = views.query(f"select * from {schema}.{name}", (), session())
        values = {value for row in rows for value in row}
        named = "t" in values and name.endswith(("tables", "columns"))
        if DROPPED in values or named:
            found.add(name)
    return found


def test_a_dropped_table_is_in_no_catalog(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path / "catalog.sqlite")
    define(new_backend(catalog, FakeQueries(), tmp_path), catalog)
    source: Any = _Source(catalog)
    views = SystemCatalog(source)
    shown = _showing(views)
    assert {"pg_class", "pg_attribute", "pg_publication_rel", "pg_tables"} <= shown
    catalog.drop_table(Oid(int(DROPPED)))
    assert not _showing(views)
    views.close()
