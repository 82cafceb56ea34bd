"""RETURNING in the translation of statements: which of them need no query, and their columns."""

from __future__ import annotations

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import SqlSyntaxError, Wal2LakeError
from wal2lake.model import Oid
from wal2lake.sql.query.changes.returning import Returning
from wal2lake.sql.query.translate import BoundParameter, TableRef
from wal2lake.sql.query.values.undetermined import Undetermined
from wal2lake.sql.query.writes import translate_write

INT, TEXT = Oid(23), Oid(25)
COLUMNS = {
    "t": (ColumnDef("id", INT), ColumnDef("n", INT), ColumnDef("v", TEXT)),
    "u": (ColumnDef("id", INT), ColumnDef("w", TEXT)),
}


def resolve(schema: str | None, name: str) -> TableRef:
    oid = Oid(16384 + ord(name[0]))
    table = TableDef(oid, "public", name, Oid(10), COLUMNS[name], ("id",), f"/{name}")
    return TableRef(table, None)


def returning(sql: str) -> Returning:
    write = translate_write(sql, resolve)
    assert write.by_rows is not None and write.by_rows.returning is not None
    return write.by_rows.returning


@pytest.mark.parametrize(
    ("sql", "choice", "names"),
    [
        ("insert into t values (1) returning *", "n0 n1 n2", "id n v"),
        ("insert into t as x values (1) returning x.v, id as a", "n2 n0", "v a"),
        ("update t set n = 1 returning old.n, new.n, n", "o1 n1 n1", "n n n"),
        ("delete from t returning *, new.id", "o0 o1 o2 n0", "id n v id"),
        ("delete from public.t returning public.t.id", "o0", "id"),
        ("update t set n = 1 from u where u.id = t.id returning w", "x0", "w"),
        ("delete from t using u returning u.*, t.n", "x0 x1 o1", "id w n"),
        ("delete from t returning with (old as o) o.id, new.id", "o0 n0", "id id"),
        # The table's own name comes first.
        ("update t as old set n = 1 returning old.n, new.n", "n1 n1", "n n"),
    ],
)
def test_columns_need_no_query(sql: str, choice: str, names: str) -> None:
    found = returning(sql)
    assert found.values.choice == tuple(choice.split())
    assert [column.name for column in found.columns] == names.split()


def test_an_expression_is_computed_from_the_rows() -> None:
    found = returning("update t set n = 2 returning n - old.n as d, v || '!', 1")
    assert found.values.choice is None
    assert sorted(found.values.reads) == ["n1", "n2", "o1"]
    assert [(c.name, c.type.oid) for c in found.columns] == [
        ("d", 23),
        ("?column?", 25),
        ("?column?", 23),
    ]


def test_a_parameter_of_the_list_has_a_type() -> None:
    cell = Undetermined()
    parameter = BoundParameter(None, 0, cell)
    translate_write("delete from t returning n + $1", resolve, (parameter,))
    assert cell.oid == 23


@pytest.mark.parametrize(
    ("items", "sqlstate", "message"),
    [
        ("x", "42703", 'column "x" does not exist'),
        ("u.id", "42P01", 'missing FROM-clause entry for table "u"'),
        ("u.*", "42P01", 'missing FROM-clause entry for table "u"'),
        ("max(n)", "42803", "aggregate functions are not allowed in RETURNING"),
        ("rank() over ()", "42P20", "window functions are not allowed in RETURNING"),
        ("id into x", "42601", 'syntax error at or near "into"'),
        ("old", "0A000", 'the whole row "old" is not supported in RETURNING'),
    ],
)
def test_errors_are_postgresqls(items: str, sqlstate: str, message: str) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        returning(f"delete from t returning {items}")
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)


def test_a_column_of_two_tables_is_ambiguous() -> None:
    with pytest.raises(Wal2LakeError, match='column reference "id" is ambiguous'):
        returning("delete from t using u returning id")


def test_names_of_the_images_are_given_once() -> None:
    for names in ("old as a, old as b", "old a", "before as a", "old as a,"):
        with pytest.raises(SqlSyntaxError):
            returning(f"delete from t returning with ({names}) id")


def test_the_list_needs_the_privilege_to_read() -> None:
    for items, needs in (("1", "d"), ("id", "dr"), ("*", "dr"), ("old.*", "dr")):
        assert (
            translate_write(f"delete from t returning {items}", resolve).needs == needs
        )
