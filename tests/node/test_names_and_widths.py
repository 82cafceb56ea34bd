"""Tables and columns whose names are hard for Spark, Delta or a file system, and tables of one
column and of a thousand: copied, streamed, written and read at the front door."""

from __future__ import annotations

import pytest
from tests.conftest import Database
from tests.node.conftest import Subscribe

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_ident as q
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

COLUMNS = (
    "a b",
    "a.b",
    "a/b",
    "a%b",
    'q"u"ote',
    "it's",
    "back`tick``",
    "🦆",
    "a,b;{}()=",
    "new\nline",
    "tab\t",
    " ",
    "\\",
    "ß" * 31,
    "select",
    "user",
    "null",
    "ÄÖ",
    "%s",
    "$1",
    ":c",
    "?",
    "_Metadata",
    "_change_type",
    "_commit_version",
    "_row_id",
    "row_index",
    "file_path",
    "__index_level_0__",
    "element",
    "source",
    "target",
    "excluded",
    "key",
    "oid",
    "position",
)
"""Columns of one table, the first two its key."""

NAMES = (
    'nm.".we.ird ta/ble%`;{}()=\n\t"',
    'nm."' + "🦆" * 15 + '"',
    'nm."Case"',
    'nm."case"',
    'nm."_delta_log"',
    '"nm.é /\\%2F"."t\'""q"',
)

WIDE = 1000


def prepare(source: Database) -> list[str]:
    """Make the tables; their qualified names."""
    columns = ", ".join(f"{q(name)} text not null default 'd'" for name in COLUMNS)
    wide = ", ".join(f"c{i} int default {i}" for i in range(1, WIDE))
    source.psql(
        'create schema nm; create schema "nm.é /\\%2F";'
        + "".join(
            f'create table {name} ("k.`y" int primary key, "V l" text);'
            f" insert into {name} values (1, 'one'), (2, null);"
            for name in NAMES
        )
        + f"create table nm.hard ({columns}, primary key ({q(COLUMNS[0])}, {q(COLUMNS[1])}));"
        f" insert into nm.hard ({q('a.b')}) select g from generate_series(1, 5) g;"
        f" create table nm.loose ({columns}); alter table nm.loose replica identity full;"
        f" insert into nm.loose select * from nm.hard; insert into nm.loose select * from nm.hard;"
        f" create table nm.wide (id int primary key, {wide});"
        " insert into nm.wide (id) select generate_series(1, 5);"
        " create table nm.one (a int primary key); insert into nm.one values (1), (2);"
        " create table nm.bag (a int); alter table nm.bag replica identity full;"
        " insert into nm.bag values (1), (1), (null), (null);"
        ' create publication nm for tables in schema nm, "nm.é /\\%2F"'
    )
    return [*NAMES, "nm.hard", "nm.loose", "nm.wide", "nm.one", "nm.bag"]


def play(source: Database, mirror: Mirror, tables: list[str]) -> None:
    """Copied, streamed, and written here as at the source."""
    mirror.synced()
    source.transactions(
        [
            *(
                f'update {name} set "V l" = \'new\' where "k.`y" = 2;'
                f' update {name} set "k.`y" = 5 where "k.`y" = 1;'
                f" insert into {name} values (7, 'seven')"
                for name in NAMES
            ),
            *(
                f"update nm.hard set {q(name)} = {q(name)} || 'x' where {q('a.b')} = '2'"
                for name in COLUMNS[2:]
            ),
            f"update nm.hard set {q('a b')} = 'moved' where {q('a.b')} = '3';"
            f" delete from nm.hard where {q('a.b')} = '4';"
            f" insert into nm.hard ({q('a.b')}, {q('_Metadata')}) values ('9', 'z')",
            *(
                f"update nm.loose set {q(name)} = 'x' where ctid ="
                " (select min(ctid) from nm.loose)"
                for name in COLUMNS
            ),
            "delete from nm.loose where ctid = (select max(ctid) from nm.loose)",
            "update nm.wide set c1 = null, c999 = -1 where id = 2;"
            " update nm.wide set id = 30 where id = 3; delete from nm.wide where id = 4;"
            " insert into nm.wide (id, c500) values (6, 0)",
            "update nm.one set a = 3 where a = 1; delete from nm.one where a = 2;"
            " insert into nm.one values (4)",
            "delete from nm.bag where ctid = (select min(ctid) from nm.bag);"
            " update nm.bag set a = 5 where ctid = (select max(ctid) from nm.bag)",
        ]
    )
    mirror.assert_equal(tables)


@pytest.mark.slow
def test_hard_names_and_widths(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    tables = prepare(pg18)
    mirror = subscribe(pg18, "nm")
    play(pg18, mirror, tables)
    same = (
        f"update nm.hard set {q('_Metadata')} = {q('back`tick``')} || 'q',"
        f" {q('select')} = 'local' where {q('a.b')} = '2'",
        f'delete from {NAMES[0]} where "k.`y" = 7',
        f'insert into {NAMES[1]} ("V l", "k.`y") values (\'here\', 8)',
        "update nm.wide set c2 = c3 + 1 where id < 3",
        "update nm.bag set a = a + 1 where a = 5",
    )
    node.sql("alter subscription nm disable")
    for statement in same:
        node.sql(statement)
        pg18.psql(statement)
    changed = (NAMES[0], NAMES[1], "nm.hard", "nm.wide", "nm.bag")
    assert not mirror.differences(changed)
    # Columns by name, in expressions, aliases and orders.
    chosen = ", ".join(f"h.{q(name)}" for name in reversed(COLUMNS))
    asked = f"select {chosen}, count(*) over () from nm.hard h order by 35, 36"
    with mirror.source() as session:
        assert node.sql(asked) == session.query(asked)
    for name in ("ctid", "xmin", "tableoid"):
        for refused in (
            f"create table nm.refused ({name} int)",
            f"alter table nm.one add column {name} int",
        ):
            with pytest.raises(
                PublisherError,
                match=f'column name "{name}" conflicts with a system column name',
            ) as caught:
                node.sql(refused)
            assert caught.value.sqlstate == "42701"
    # What Delta cannot have, and how that is said.
    with pytest.raises(
        PublisherError, match=r'"A" and "a" of table "nm\.two"'
    ) as caught:
        node.sql('create table nm.two ("A" int, a int)')
    assert caught.value.sqlstate == "0A000"
    assert caught.value.hint
    for name in ("_metadata", "_tmp_metadata_row_index"):
        with pytest.raises(PublisherError, match=f'"{name}" of table') as caught:
            node.sql(f"create table nm.two ({name} int)")
        assert caught.value.sqlstate == "0A000"
        assert caught.value.hint
    node.sql('drop subscription nm; drop schema "nm.é /\\%2F" cascade')
