"""Parameters of which a client says nothing have the types that PostgreSQL gives them."""

from __future__ import annotations

import psycopg
from tests.conftest import Database

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.engine.session.parametertypes import parameter_types, stated_types
from wal2lake.model import Oid
from wal2lake.sql.grammar.parser import parse
from wal2lake.sql.query.translate import TableRef

_COLUMNS = {
    "id": (20, -1, "bigint"),
    "i": (23, -1, "int"),
    "s": (21, -1, "smallint"),
    "t": (25, -1, "text"),
    "v": (1043, 24, "varchar(20)"),
    "b": (16, -1, "boolean"),
    "d": (1082, -1, "date"),
    "ts": (1114, -1, "timestamp"),
    "tz": (1184, -1, "timestamptz"),
    "f": (701, -1, "float8"),
    "n": (1700, ((12 << 16) | 2) + 4, "numeric(12,2)"),
    "u": (2950, -1, "uuid"),
    "y": (17, -1, "bytea"),
    "j": (3802, -1, "jsonb"),
    "a": (1007, -1, "int[]"),
    "k": (20, -1, "bigserial"),
}

_TABLE = TableDef(
    Oid(30000),
    "public",
    "params",
    Oid(10),
    tuple(
        ColumnDef(n, Oid(oid), m, sequence=Oid(30001) if kind == "bigserial" else None)
        for n, (oid, m, kind) in _COLUMNS.items()
    ),
    ("id",),
    "/w/params",
)

_ALL = ", ".join(_COLUMNS)
_NUMBERED = ", ".join(f"${i}" for i in range(1, len(_COLUMNS) + 1))

_STATEMENTS = [
    "select * from params where id = $1",
    "select $1::bigint, $2::text, cast($3 as date)",
    "select * from params where i between $1 and $2 and t like $3 and d >= $4",
    f"insert into params ({_ALL}) values ({_NUMBERED})",
    "insert into params (id, t) values ($1, $2), ($3, $4)",
    "insert into params (id, t) select $1, $2",
    "update params set n = $1, t = $2, tz = $3 where id = $4",
    "update params set i = i + $1 where id in ($2, $3)",
    "delete from params where u = $1",
    "select id from params order by id limit $1 offset $2",
    "select * from params where id = any($1)",
    "select * from params where id = any($1::int[])",
    "select $1",
    "select coalesce(i, $1), coalesce($2, t) from params",
    "select n + $1, $2 * f from params",
    "select * from params where $1 < tz and n > $2",
    "select count(*) from params where b = $1 or v = $2",
    "select case when id = $1 then $2 else i end from params",
    "select upper($1)",
    "select * from params where (id, t) = ($1, $2)",
    "select id from params where t = $1 union select $2",
    "select * from params where j = $1",
    "select $1 || t from params",
    "select * from params where id = $1 and i = $1",
    "select * from params where not b and ts::date = $1",
    "select * from params where y = $1 and u <> $2",
]

_OF_CATALOGS = [
    "select relname from pg_class where oid = $1 limit $2",
    "select * from pg_attribute where attrelid = $1 and attnum > $2",
    "select * from pg_attribute where attnum between $1 and $2 and $3 between 1 and 2",
    "select nspname from pg_namespace where nspname in ($1, $2)",
    "select current_setting($1)",
    "select oid from pg_class where relname = $1 and relkind = any($2)",
    "select $1::regclass",
]


def ours(sql: str, *, system: bool) -> list[int]:
    statement = parse(sql)
    said = stated_types(sql, statement, ())
    return parameter_types(
        sql,
        statement,
        said,
        lambda: lambda _, name: TableRef(_TABLE, None),
        "UTC",
        system,
    )


def test_they_have_postgresqls_types(pg18: Database) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (_, _, kind) in _COLUMNS.items())
    different = []
    with psycopg.connect(pg18.conninfo(), autocommit=True) as session:
        session.execute(f"create table params ({columns})")
        for sql in _STATEMENTS + _OF_CATALOGS:
            session.pgconn.prepare(b"one", sql.encode())
            described = session.pgconn.describe_prepared(b"one")
            session.execute("deallocate one")
            theirs = [described.param_type(i) for i in range(described.nparams)]
            found = ours(sql, system=sql in _OF_CATALOGS)
            if found != theirs:
                different.append((sql, found, theirs))
    assert not different
