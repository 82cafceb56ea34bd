"""pgjdbc's prepared statements: it sends dates and times as text of a type that it leaves open, and
in its simple mode as constants. The same steps at the node and at PostgreSQL must find the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from tests.conftest import Database
from tests.fakes.replication_clients import jvm_of_pgjdbc

from wal2lake.launch.directory.passfile import connection_parameters
from wal2lake.testing.node import Node

_COLUMNS = (
    "id bigint primary key, d date, t time, tt timetz, ts timestamp, tz timestamptz,"
    " n numeric(12,2), x text, u uuid, y bytea, b boolean, f float8, s smallint, a int[]"
)

_TIMES = "d, t, tt, ts, tz"

_MODES = {
    # The driver keeps the statement at once, and asks for binary values.
    "extended": {"prepareThreshold": "1", "binaryTransfer": "true"},
    "simple": {"preferQueryMode": "simple"},
}


def _parameters(java: Any) -> list[list[tuple[str, Any]]]:
    """Rows as ``(setter, value)`` of the columns d, t, tt, ts, tz."""
    calendar = java.util.Calendar.getInstance(java.util.TimeZone.getTimeZone("UTC"))
    moment = 1_767_323_045_678
    zone = java.time.ZoneOffset.ofHours(2)
    when = java.time.LocalDateTime.of(2026, 1, 2, 3, 4, 5, 678_000_000)
    epoch = java.time.LocalDate.ofEpochDay(0)
    sql = java.sql
    return [
        [
            ("setDate", sql.Date(moment)),
            ("setTime", sql.Time(moment)),
            ("setTime", sql.Time(moment)),
            ("setTimestamp", sql.Timestamp(moment)),
            ("setTimestamp", sql.Timestamp(moment)),
        ],
        [
            ("setDate", (sql.Date(0), calendar)),
            ("setTime", (sql.Time(0), calendar)),
            ("setTime", (sql.Time(0), calendar)),
            ("setTimestamp", (sql.Timestamp(0), calendar)),
            ("setTimestamp", (sql.Timestamp(0), calendar)),
        ],
        [
            ("setObject", when.toLocalDate()),
            ("setObject", when.toLocalTime()),
            ("setObject", java.time.OffsetTime.of(when.toLocalTime(), zone)),
            ("setObject", when),
            ("setObject", when.atOffset(zone)),
        ],
        [
            ("setObject", epoch),
            ("setObject", java.time.LocalTime.MIDNIGHT),
            ("setObject", java.time.OffsetTime.of(java.time.LocalTime.MIDNIGHT, zone)),
            ("setObject", epoch.atStartOfDay()),
            ("setObject", epoch.atStartOfDay().atOffset(java.time.ZoneOffset.UTC)),
        ],
        [("setNull", code) for code in (91, 92, 2013, 93, 2014)],
    ]


def _bind(statement: Any, values: list[tuple[str, Any]], first: int) -> None:
    for place, (setter, value) in enumerate(values, first):
        given = value if isinstance(value, tuple) else (value,)
        getattr(statement, setter)(place, *given)


def _rows(results: Any) -> list[list[str | None]]:
    kinds = results.getMetaData()
    found = [[kinds.getColumnTypeName(i) for i in range(1, kinds.getColumnCount() + 1)]]
    while results.next():
        found.append([results.getString(i + 1) for i in range(kinds.getColumnCount())])
    return found


def _use(java: Any, server: Mapping[str, str | int | None], mode: str) -> list[Any]:
    properties = java.util.Properties()
    properties.setProperty("user", server["user"])
    if "passfile" in server:
        word = Path(str(server["passfile"])).read_text().strip().rpartition(":")[2]
        properties.setProperty("password", word)
    for name, value in _MODES[mode].items():
        properties.setProperty(name, value)
    address = f"{server['host']}:{server['port']}/{server['dbname']}"
    manager = java.sql.DriverManager
    one = manager.getConnection(f"jdbc:postgresql://{address}", properties)
    found: list[Any] = []
    try:
        one.createStatement().execute(f"create table of_pgjdbc ({_COLUMNS})")
        found += _write(java, one)
        found += _read(java, one)
        one.createStatement().execute("drop table of_pgjdbc")
    finally:
        one.close()
    return found


def _write(java: Any, one: Any) -> list[Any]:
    found: list[Any] = []
    insert = one.prepareStatement(
        f"insert into of_pgjdbc (id, {_TIMES}) values (?, ?, ?, ?, ?, ?)"
    )
    for number, values in enumerate(_parameters(java), 1):
        insert.setLong(1, number)
        _bind(insert, values, 2)
        insert.addBatch()
    one.setAutoCommit(False)
    found.append(list(insert.executeBatch()))
    others = one.prepareStatement(
        "update of_pgjdbc set n = ?, x = ?, u = ?, y = ?, b = ?, f = ?, s = ?, a = ?"
        " where id = ?"
    )
    others.setBigDecimal(1, java.math.BigDecimal("12345.67"))
    others.setString(2, "it's")
    others.setObject(3, java.util.UUID(0, 7))
    others.setBytes(4, b"\x00\xff")
    others.setBoolean(5, True)
    others.setDouble(6, 1.5)
    others.setInt(7, -3)
    numbers = java.util.ArrayList()
    numbers.add(1)
    numbers.add(2)
    others.setArray(8, one.createArrayOf("int4", numbers.toArray()))
    others.setLong(9, 1)
    found.append(others.executeUpdate())
    one.commit()
    one.setAutoCommit(True)
    return found


def _read(java: Any, one: Any) -> list[Any]:
    found = [
        _rows(one.createStatement().executeQuery("select * from of_pgjdbc order by id"))
    ]
    # Each value beside the column that it was written to; timetz has no comparison at the node.
    equal = "d = ?, t = ?, ts = ?, tz = ?"
    compared = one.prepareStatement(f"select id, {equal} from of_pgjdbc order by id")
    for values in (_parameters(java)[1], _parameters(java)[2]):
        _bind(compared, values[:2] + values[3:], 1)
        found.append(_rows(compared.executeQuery()))
    asked = one.prepareStatement(
        "select ?::date, count(*) from of_pgjdbc"
        " where d between ? and '2026-02-01' and tz < ? and ts >= ?"
    )
    asked.setDate(1, java.sql.Date(0))
    asked.setDate(2, java.sql.Date(0))
    asked.setTimestamp(3, java.sql.Timestamp(10**12))
    asked.setTimestamp(4, java.sql.Timestamp(0))
    found.append(_rows(asked.executeQuery()))
    listed = one.prepareStatement(
        "select relname from pg_class where oid = ?::regclass"
    )
    listed.setString(1, "of_pgjdbc")
    found.append(_rows(listed.executeQuery()))
    columns = one.getMetaData().getColumns(None, "public", "of_pgjdbc", None)
    while columns.next():
        names = ("COLUMN_NAME", "TYPE_NAME", "COLUMN_SIZE", "IS_NULLABLE")
        found.append([columns.getString(name) for name in names])
    keys = one.getMetaData().getPrimaryKeys(None, "public", "of_pgjdbc")
    while keys.next():
        found.append([keys.getString("COLUMN_NAME"), keys.getString("PK_NAME")])
    return found


def test_pgjdbc_finds_what_it_would_in_postgresql(node: Node, pg18: Database) -> None:
    with jvm_of_pgjdbc() as java:
        for mode in _MODES:
            theirs = _use(java, conninfo_to_dict(pg18.conninfo()), mode)
            ours = _use(java, connection_parameters(node.directory), mode)
            assert ours == theirs, mode
