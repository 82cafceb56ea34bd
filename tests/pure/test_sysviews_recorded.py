"""Catalog queries of real clients, recorded with PostgreSQL 18's answers to them.

psql 18, 16 and 15 (all \\d commands, tab completion), SQLAlchemy's inspector, psycopg's TypeInfo
and pgjdbc's DatabaseMetaData. The fake catalog has the same objects under the same OIDs; columns,
type OIDs and rows must be PostgreSQL's, but for what a node has differently, listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.catalog_source import OBJECTS, RECORDED, FakeSource, session

from wal2lake.errors import UndefinedObjectError
from wal2lake.model import DATABASE_OID
from wal2lake.sql.query.translate import BoundParameter
from wal2lake.sql.sysviews import SystemCatalog, is_system_query
from wal2lake.sql.sysviews.rows.facts import build_facts

# Commands whose rows differ, and why.
OTHER_ROWS = {
    r"\dt+": "sizes are those of lake files",
    r"\di+": "sizes are those of lake files",
    r"\dt *.*": "other system tables",
    r"\dn": "schema wal2lake, no pg_database_owner",
    r"\dn+": "schema wal2lake, no pg_database_owner",
    r"\l": "one database",
    r"\l+": "one database",
    r"\dx": "no plpgsql",
    r"tab \d ": "schema wal2lake",
    r"tab \dn ": "schema wal2lake",
    r"tab \du ": "no predefined roles",
    r"tab \c ": "one database",
    "tab select * from ": "schema wal2lake",
    "tab insert into ": "schema wal2lake",
    "tab drop table ": "schema wal2lake",
    "tab truncate ": "schema wal2lake",
    "tab set search_path to ": "schema wal2lake",
}
OTHER_ROWS_OF_SQL = {
    "version()": "the node's own",
    "pg_opclass.opcdefault": "no operator classes",
    "pg_catalog.pg_namespace.nspname NOT LIKE": "schema wal2lake",
    "datallowconn = true": "one database",
    "'pg_toast_temp_'))  ORDER": "schema wal2lake",
    "AND c.relname LIKE $1 ORDER BY": "other system tables",
    "SELECT t.typname,t.oid FROM pg_catalog.pg_type t JOIN": "in no order",
    "as is_array, typtype, typname, pg_type.oid": "no types of rows",
    'as "TYPE_CAT", n.nspname': "no types of rows",
}

IN_NO_ORDER = "NULL AS relhasoids"
"""Text of the query of several rows that asks for no order; the second column tells them apart."""

QUERIES: list[dict[str, Any]] = RECORDED["queries"]


@pytest.fixture(scope="module")
def catalog() -> Iterator[SystemCatalog]:
    catalog = SystemCatalog(FakeSource())
    yield catalog
    catalog.close()


def _renumbered() -> dict[str, str]:
    """OIDs that the node numbers itself, from PostgreSQL's to ours."""
    source = FakeSource()
    facts = build_facts(
        source.roles(), source.namespaces(), source.tables(), source.comments()
    )
    ours = {f"{r.namespace}.{r.name}": str(int(r.oid)) for r in facts.relations}
    found = {str(oid): ours[name] for name, oid in OBJECTS.items() if name in ours}
    return {**found, str(OBJECTS["database lake"]): str(int(DATABASE_OID))}


OIDS = _renumbered()
PG_OIDS = {ours: theirs for theirs, ours in OIDS.items()}


def _sql(entry: dict[str, Any]) -> str:
    return re.sub(r"\b\d+\b", lambda m: OIDS.get(m[0], m[0]), entry["sql"])


def _parameters(entry: dict[str, Any]) -> list[BoundParameter]:
    return [
        BoundParameter(None if text is None else OIDS.get(text, text), 0)
        for text in entry.get("params", ())
    ]


def _has_other_rows(entry: dict[str, Any]) -> bool:
    command = re.sub(r"^psql \d+ ", "", entry["source"])
    return command in OTHER_ROWS or any(s in entry["sql"] for s in OTHER_ROWS_OF_SQL)


@pytest.mark.parametrize(
    "number", range(len(QUERIES)), ids=[f"{q['source']}" for q in QUERIES]
)
def test_a_recorded_query_answers_as_postgresql_did(
    number: int, catalog: SystemCatalog
) -> None:
    entry = QUERIES[number]
    sql = _sql(entry)
    assert is_system_query(sql)
    if entry["source"].endswith(r"\sf nosuch"):
        with pytest.raises(UndefinedObjectError) as caught:
            catalog.query(sql, (), session())
        assert caught.value.sqlstate == entry["error"]
        return
    fields, rows = catalog.query(sql, _parameters(entry), session())
    if "error" in entry:
        # psql 15 and 16 ask pg_database for a column that 17 renamed.
        assert r"\l" in entry["source"] and rows[0][0] == "lake"
        return
    assert [[f.name, f.type_oid] for f in fields] == entry["columns"]
    if not _has_other_rows(entry):
        wanted = entry["rows"]
        if IN_NO_ORDER in sql:
            wanted = sorted(wanted, key=lambda row: row[1])
            rows = sorted(rows, key=lambda row: str(row[1]))
        shown = [
            # A number that is no OID may be one by chance.
            [v if v in wanted[at : at + 1][0] else PG_OIDS.get(v or "", v) for v in row]
            for at, row in enumerate(rows[: len(wanted)])
        ]
        assert shown == wanted
        assert len(rows) == len(wanted) or len(wanted) == 60


def test_nearly_all_recorded_queries_are_compared_whole() -> None:
    whole = [q for q in QUERIES if "error" not in q and not _has_other_rows(q)]
    assert len(whole) > 0.8 * len(QUERIES)


@pytest.mark.parametrize("number", range(0, len(QUERIES), 7))
def test_describe_tells_the_same_columns_without_running(
    number: int, catalog: SystemCatalog
) -> None:
    entry = QUERIES[number]
    if "error" in entry:
        return
    parameters = [BoundParameter(None, 0) for _ in entry.get("params", ())]
    fields = catalog.describe(_sql(entry), parameters, session())
    assert [[f.name, f.type_oid] for f in fields] == entry["columns"]
