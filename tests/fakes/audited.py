"""Tables of a source whose changes a trigger writes down, and random work on them.

Comes in: a database of a source, a node with histories of these tables. Goes out: what the trigger
has seen, and what the histories have, in one form. Called by the tests of history tables.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from tests.conftest import Database

from wal2lake.testing.node import Node

Change = tuple[str, str, dict[str, str | None] | None, dict[str, str | None] | None]
"""Operation, xid, row before, row after."""

AUDIT = """
create schema audit;
create table audit.log (
    n bigint generated always as identity, tab text, op text, xid text, old text, new text);
create function audit.note() returns trigger language plpgsql as $$
declare
    before text; after text;
begin
    if tg_op in ('UPDATE', 'DELETE') then
        before := (select jsonb_object_agg(key, value) from jsonb_each_text(to_jsonb(old)));
    end if;
    if tg_op in ('UPDATE', 'INSERT') then
        after := (select jsonb_object_agg(key, value) from jsonb_each_text(to_jsonb(new)));
    end if;
    insert into audit.log (tab, op, xid, old, new) values (
        tg_table_name, lower(tg_op), pg_current_xact_id()::xid::text, before, after);
    return null;
end $$;
"""


def audit(*tables: str) -> str:
    """Statements that put the triggers on tables; their names are qualified."""
    return "".join(
        f"create trigger note after insert or update or delete on {table}"
        " for each row execute function audit.note();"
        f"create trigger gone after truncate on {table} execute function audit.note();"
        for table in tables
    )


def noted(source: Database, table: str, above: int = 0) -> list[Change]:
    """What the trigger has seen of a table."""
    text = source.psql(
        "select coalesce(json_agg(json_build_array(op, xid, old, new) order by n), '[]')"
        f" from audit.log where tab = '{table}' and n > {above}"
    )
    return [
        (
            op,
            xid,
            None if old is None else json.loads(old),
            None if new is None else json.loads(new),
        )
        for op, xid, old, new in json.loads(text)
    ]


def last_note(source: Database) -> int:
    """Number of the last change so far."""
    return int(source.psql("select coalesce(max(n), 0) from audit.log"))


def recorded(
    node: Node,
    history: str,
    columns: Sequence[str],
    ops: Sequence[str] = ("insert", "update", "delete", "truncate"),
) -> list[Change]:
    """The rows of a history table, in order."""
    names = [f"{side}_{name}" for side in ("old", "new") for name in columns]
    rows = node.sql(
        f"select op, xid, {', '.join(names)} from {history}"
        " order by commit_lsn, ordinal"
    )
    width = len(columns)
    found: list[Change] = []
    for op, xid, *values in rows:
        if op not in ops:
            continue
        old = dict(zip(columns, values[:width], strict=True))
        new = dict(zip(columns, values[width:], strict=True))
        found.append(
            (
                str(op),
                str(xid),
                old if op in ("update", "delete") else None,
                new if op in ("update", "insert", "snapshot") else None,
            )
        )
    return found


KEYED = ("id", "a", "big")
KEYLESS = ("a", "b")

TABLES = """
create table k (id int primary key, a int, big text);
alter table k alter big set storage external;
create table u (a int, b text);
alter table u replica identity full;
insert into k select n, n, repeat(md5(n::text), 100) from generate_series(1, 20) n;
insert into u select n % 3, 'x' from generate_series(1, 9) n;
"""


def transaction(rng: random.Random) -> str:
    """Some statements on ``k`` and ``u``, as one transaction."""
    return (
        f"begin; {'; '.join(_statement(rng) for _ in range(rng.randint(1, 6)))}; commit"
    )


def _statement(rng: random.Random) -> str:
    one, other, n = rng.randint(1, 30), rng.randint(1, 30), rng.randint(0, 99)
    return rng.choice(
        (
            f"insert into k values ({one}, {n}, repeat(md5('{n}'), 100))"
            " on conflict do nothing",
            f"insert into k select {one}, {n}, 'short' where not exists"
            f" (select from k where id = {one})",
            f"update k set a = {n} where id = {one}",
            f"update k set a = {n} where id = {one}",
            f"update k set a = a + 1 where id between {one} and {one + 3}",
            f"update k set big = repeat(md5('{n}'), 90) where id = {one}",
            f"update k set id = {other} where id = {one} and not exists"
            f" (select from k where id = {other})",
            f"update k set id = -id where id = {one}; update k set id = {one}"
            f" where id = {other}; update k set id = {other} where id = -{one}"
            if one != other
            else "select 1",
            f"delete from k where id = {one}",
            f"delete from k where id = {one}; insert into k values ({one}, {n}, 'again')",
            f"insert into u values ({n % 3}, 'x')",
            f"update u set a = {n % 4} where ctid ="
            f" (select min(ctid) from u where a = {one % 3})",
            f"update u set b = b || 'y' where a = {one % 4} and b <> 'xyy'",
            f"delete from u where ctid = (select max(ctid) from u where a = {one % 3})",
            "truncate u" if n < 15 else "select 1",
            "truncate k, u" if n < 8 else "select 1",
        )
    )
