"""Every question that subscribers of PostgreSQL 14 to 18 ask of a publisher's catalogs, word for
word, and psql's: answered by the node as by PostgreSQL 18 for the same definitions.

The statements were captured from subscribers of all these versions; ``%oid`` stands for a table's
OID, which differs, ``%list`` for the publications.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.publishing import PublishingNode

from wal2lake.pg.client import Client, Failure

DEFINITIONS = (
    "create schema s",
    "create table t1 (id int primary key, v text, w varchar(5))",
    "create table t2 (a int not null, b int, constraint t2_key primary key (b, a))",
    "create table t3 (x int)",
    "create table s.t4 (id int primary key)",
    "create table pt (id int primary key, a int) partition by range (id)",
    "create table pd partition of pt default",
    'create table "Odd t" ("Odd c" int primary key, "select" text)',
    "alter table t3 replica identity full",
    "alter table s.t4 replica identity nothing",
    "alter table t2 replica identity using index t2_key",
    "create publication pa for table t1 (id, v) where (id > 0)",
    "create publication pb for table t1, t2 where (b > 1 and a < 5)",
    "create publication pc for table t1 where (w = 'x'), tables in schema s",
    "create publication pd for all tables with (publish = 'insert')",
    "create publication pe for table pt where (a > 1) with"
    " (publish_via_partition_root)",
    "create publication pf for table pt, pd",
    'create publication "Odd p" for table "Odd t" ("Odd c")',
    "create publication nothing",
    "alter table t2 rename column b to bb",
)

LISTS = (
    "'pa'",
    "'pa', 'pb'",
    "'pc'",
    "'pd'",
    "'pe'",
    "'pe', 'pf'",
    "'pf', 'Odd p'",
    "'no'",
)

ABOUT_LISTS = (
    # 14 to 18: which of them are there, and their tables
    "SELECT t.pubname FROM\n pg_catalog.pg_publication t WHERE\n t.pubname IN (%list)",
    "SELECT DISTINCT t.schemaname, t.tablename \nFROM pg_catalog.pg_publication_tables t\n"
    " WHERE t.pubname IN (%list)",
    "SELECT DISTINCT t.schemaname, t.tablename \n, t.attnames\n"
    "FROM pg_catalog.pg_publication_tables t\n WHERE t.pubname IN (%list)",
    "SELECT DISTINCT n.nspname, c.relname, gpt.attrs\n FROM pg_class c\n"
    " JOIN pg_namespace n ON n.oid = c.relnamespace\n"
    " JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*\n"
    " FROM pg_publication\n WHERE pubname IN ( %list )) AS gpt\n ON gpt.relid = c.oid",
    # 16, and 17 and 18: does it subscribe itself?
    "SELECT DISTINCT P.pubname AS pubname\nFROM pg_publication P,\n"
    "     LATERAL pg_get_publication_tables(P.pubname) GPT\n"
    "     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid),\n"
    "     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)\n"
    "WHERE C.oid = GPT.relid AND P.pubname IN (%list)",
    "SELECT DISTINCT P.pubname AS pubname\nFROM pg_publication P,\n"
    "     LATERAL pg_get_publication_tables(P.pubname) GPT\n"
    "     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR"
    "     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION"
    "                   SELECT relid FROM pg_partition_tree(PS.srrelid))),\n"
    "     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)\n"
    "WHERE C.oid = GPT.relid AND P.pubname IN (%list)\n"
    "AND NOT (N.nspname = 'public' AND C.relname = 't1')\n",
)

TABLES = ("t1", "t2", "t3", "s.t4", "pt", "pd", '"Odd t"')

ABOUT_TABLES = (
    # what is copied, from whom
    "SELECT c.oid <> 0, c.relreplident, c.relkind  FROM pg_catalog.pg_class c "
    " INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid)"
    " WHERE n.nspname = '%schema'   AND c.relname = '%name'",
    "SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey) "
    " FROM pg_catalog.pg_attribute a  LEFT JOIN pg_catalog.pg_index i       ON"
    " (i.indexrelid = pg_get_replica_identity_index(%oid)) WHERE a.attnum >"
    " 0::pg_catalog.int2   AND NOT a.attisdropped AND a.attgenerated = ''   AND"
    " a.attrelid = %oid ORDER BY a.attnum",
    "SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey),"
    " a.attgenerated != ''  FROM pg_catalog.pg_attribute a  LEFT JOIN"
    " pg_catalog.pg_index i       ON (i.indexrelid ="
    " pg_get_replica_identity_index(%oid)) WHERE a.attnum > 0::pg_catalog.int2   AND NOT"
    " a.attisdropped    AND a.attrelid = %oid ORDER BY a.attnum",
)

ABOUT_BOTH = (
    "SELECT DISTINCT  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)   THEN NULL"
    " ELSE gpt.attrs END)  FROM pg_publication p,  LATERAL"
    " pg_get_publication_tables(p.pubname) gpt,  pg_class c WHERE gpt.relid = %oid AND"
    " c.oid = gpt.relid   AND p.pubname IN ( %list )",
    "SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)  FROM pg_publication p,  LATERAL"
    " pg_get_publication_tables(p.pubname) gpt WHERE gpt.relid = %oid   AND p.pubname IN"
    " ( %list )",
)

OTHERS = (
    "SELECT pg_is_in_recovery()",
    "SELECT pg_catalog.set_config('search_path', 'public', false)",
    "select relid::regclass, attrs, qual is null from"
    " pg_get_publication_tables('pa', 'pb') order by 1",
    "select p.pubname, (select count(*) from pg_get_publication_tables(p.pubname))"
    " from pg_publication p order by 1",
    "select (pg_get_publication_tables('pc')).attrs",
    "select g.* from pg_get_publication_tables('pa') g where g.relid = 0",
    "select pg_get_publication_tables.attrs from pg_get_publication_tables('pa')",
    "select relid, parentrelid, isleaf, level from pg_partition_tree('pt')",
    "select relid from pg_partition_ancestors('pd')",
    "select pg_partition_ancestors('pd')",
    "select pg_partition_tree('pt')",
    "select pg_partition_tree('t1') as x",
    "select count(*) from pg_partition_tree('t1')",
    "select * from pg_get_publication_tables('pa', 'nope')",
    "select pg_relation_is_publishable('t1'), pg_relation_is_publishable('pg_class')",
    "select * from pg_publication_tables order by 1, 2, 3",
    "select indexrelid::regclass, indisreplident from pg_index"
    " where indrelid = 't2'::regclass",
)


class Server:
    def __init__(self, database: Database) -> None:
        self._client = Client(database.conninfo())

    def run(self, sql: str) -> object:
        (found,) = self._client.run(sql)
        if isinstance(found, Failure):
            return found.sqlstate, found.message
        return found.type_oids, sorted(found.rows, key=repr)

    def oid(self, name: str) -> str:
        rows = self._client.rows(f"select '{name}'::regclass::oid")
        return str(rows[0][0])

    def close(self) -> None:
        self._client.close()


class OurNode:
    def __init__(self, node: PublishingNode) -> None:
        self._node = node

    def run(self, sql: str) -> object:
        return self._node.ask(sql)

    def oid(self, name: str) -> str:
        return str(self._node.rows(f"select '{name}'::regclass::oid")[0][0])


@pytest.fixture
def both(
    pg18: Database, tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Server, OurNode]]:
    node = PublishingNode(tmp_path, monkeypatch)
    server = Server(pg18)
    for sql in DEFINITIONS:
        pg18.psql(sql)
        assert (
            node.run(sql)[-1][0]
            == sql.upper().split()[0] + " " + sql.upper().split()[1]
        )
    yield server, OurNode(node)
    server.close()


def test_what_subscribers_ask_is_answered_as_postgresql_does(
    both: tuple[Server, OurNode],
) -> None:
    differences = []

    def compare(sql: str, table: str = "t1") -> None:
        answers = []
        for one in both:
            schema, _, name = table.rpartition(".")
            asked = sql.replace("%oid", one.oid(table))
            asked = asked.replace("%schema", schema or "public")
            answers.append(one.run(asked.replace("%name", name.strip('"'))))
        if answers[0] != answers[1]:
            differences.append(f"{sql} {table}\n  {answers[0]}\n  {answers[1]}")

    for sql in ABOUT_LISTS:
        for names in LISTS:
            compare(sql.replace("%list", names))
    for table in TABLES:
        for sql in ABOUT_TABLES:
            compare(sql, table)
        for sql in ABOUT_BOTH:
            for names in LISTS:
                compare(sql.replace("%list", names), table)
    for sql in OTHERS:
        compare(sql)
    assert not differences, "\n".join(differences)
