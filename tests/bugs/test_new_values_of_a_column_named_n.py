"""The rows that an UPDATE's new values are asked for have a number, whose name was that of a column
of theirs in capitals: Spark takes both for the same, and refused the statement."""

from __future__ import annotations

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.model import Oid
from wal2lake.sql.query.changes.updates import new_values_sql
from wal2lake.sql.query.plain import PlainWrite
from wal2lake.sql.query.translate import TableRef
from wal2lake.sql.query.writes import translate_write


def test_the_number_of_a_row_has_a_name_of_its_own() -> None:
    columns = (ColumnDef("N", Oid(23)), ColumnDef("nn", Oid(23)))
    table = TableDef(Oid(30000), "public", "t", Oid(10), columns, (), "/t")
    write = translate_write(
        'update t set nn = "N" + nn', lambda schema, name: TableRef(table, None)
    )
    assert isinstance(write.plain, PlainWrite)
    sql = new_values_sql(write.plain, {"N": "int", "nn": "int"}, [["1", "2"]])
    assert sql.startswith("SELECT `t`.`nnn` AS n, ")
    assert sql.endswith(" AS `t`(`nnn`, `N`, `nn`)")
