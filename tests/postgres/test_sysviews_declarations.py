"""The declared columns of the system views against a PostgreSQL 18 server."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from tests.fakes.catalog_source import FakeSource, session

from wal2lake.pg.client import Client
from wal2lake.sql.sysviews.declarations.functions import FUNCTION_ROWS
from wal2lake.sql.sysviews.declarations.relations import SYSTEM, WAL2LAKE
from wal2lake.sql.sysviews.functions.pg_proc import ROW_FUNCTIONS
from wal2lake.sql.sysviews.functions.setreturning import STATE
from wal2lake.sql.sysviews.system_catalog import SystemCatalog
from wal2lake.testing.postgres import PostgresServer

_COLUMNS = """
    select n.nspname, c.relname, c.relkind::text, c.oid::int8, a.attname,
        case t.typtype when 'd' then t.typbasetype else t.oid end::int8, a.attnotnull
    from pg_attribute a
    join pg_class c on c.oid = a.attrelid
    join pg_namespace n on n.oid = c.relnamespace
    join pg_type t on t.oid = a.atttypid
    where n.nspname in ('pg_catalog', 'information_schema') and a.attnum > 0
        and not a.attisdropped
    order by c.oid, a.attnum
"""


def test_every_declared_column_is_postgresqls(
    postgres_server: Callable[[int], PostgresServer],
) -> None:
    found: dict[tuple[str, str], list[tuple[str, int, bool]]] = {}
    kinds: dict[tuple[str, str], tuple[str, int]] = {}
    conninfo = postgres_server(18).conninfo("postgres")
    with psycopg.connect(conninfo) as connection:
        for schema, name, kind, oid, column, type_oid, not_null in connection.execute(
            _COLUMNS
        ):
            found.setdefault((schema, name), []).append((column, type_oid, not_null))
            kinds[schema, name] = (kind, oid)
    for key, relation in SYSTEM.items():
        if relation.schema == WAL2LAKE:
            continue
        declared = [(c.name, int(c.type_oid), c.not_null) for c in relation.columns]
        assert declared == found[key], key
        kind, oid = kinds[key]
        assert relation.kind == kind, key
        if relation.kind == "r":
            assert relation.oid == oid, key


_GIVEN = """
    select p.proname, array_agg(a.name order by number),
        array_agg(a.type::oid::int8 order by number)
    from pg_proc p, unnest(p.proargnames, p.proallargtypes, p.proargmodes)
        with ordinality as a (name, type, mode, number)
    where p.pronamespace = 'pg_catalog'::regnamespace and a.mode = 'o'
    group by p.oid
"""


def test_every_column_of_a_function_is_postgresqls(
    postgres_server: Callable[[int], PostgresServer],
) -> None:
    found: dict[str, list[list[tuple[str, int]]]] = {}
    conninfo = postgres_server(18).conninfo("postgres")
    with psycopg.connect(conninfo) as connection:
        for function, names, types in connection.execute(_GIVEN):
            columns = list(zip(names, types, strict=True))
            found.setdefault(function, []).append(columns)
    compared = [name for name in ROW_FUNCTIONS if name in found]
    assert set(STATE) < set(compared)
    for name in compared:
        assert list(ROW_FUNCTIONS[name]) in found[name], name


_FUNCTIONS = """
    select p.oid, p.proname, p.pronamespace, p.proowner, p.provariadic, p.prokind, p.prosecdef,
        p.proisstrict, p.proretset, p.provolatile, p.proparallel, p.pronargs, p.pronargdefaults,
        p.prorettype, p.proargtypes, p.proallargtypes, p.proargmodes, p.proargnames,
        pg_get_function_result(p.oid), pg_get_function_arguments(p.oid),
        pg_get_function_identity_arguments(p.oid), pg_function_is_visible(p.oid)
    from pg_catalog.pg_proc p
    where p.oid operator(pg_catalog.=) any ('{}'::oid[]) order by p.oid
"""


def test_functions_are_listed_as_by_postgresql(
    postgres_server: Callable[[int], PostgresServer],
) -> None:
    assert {
        "pg_logical_slot_get_changes",
        "pg_replication_origin_advance",
        "pg_create_logical_replication_slot",
    } < {one.name for one in FUNCTION_ROWS.values()}
    oids = ",".join(map(str, FUNCTION_ROWS))
    sql = _FUNCTIONS.replace("{}", f"{{{oids}}}")
    catalog = SystemCatalog(FakeSource())
    try:
        found = catalog.query(sql, (), session())[1]
    finally:
        catalog.close()
    with Client(postgres_server(18).conninfo("postgres")) as client:
        assert found == client.rows(sql)
    assert len(found) == len(FUNCTION_ROWS)
