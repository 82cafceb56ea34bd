"""pg_stat_activity as a role sees it that is no member of a session's."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes.catalog_source import OBJECTS, FakeSource, session

from wal2lake.catalog import Progress, Role, RoleMember
from wal2lake.model import Lsn, Oid
from wal2lake.sql.sysviews import SystemCatalog

SUB = Oid(OBJECTS["subscription sub"])


def test_what_others_do_in_their_sessions_is_not_shown() -> None:
    source = FakeSource()
    source.role_list += [
        Role(Oid(20001), "somebody", False, None),
        Role(Oid(20002), "reader", False, None),
        Role(Oid(3375), "pg_read_all_stats", False, None),
    ]
    source.member_list.append(RoleMember(Oid(20009), Oid(3375), Oid(20002), Oid(10)))
    source.progress_by_sub[SUB] = Progress(
        receiver_pid=12,
        received=Lsn(0x30),
        last_msg_send_time=0,
        last_msg_receipt_time=0,
        latest_end_lsn=Lsn(0x20),
        latest_end_time=0,
        engine_pid=11,
        replay_lsn=Lsn(0x20),
        logged=Lsn(0x20),
        applied=Lsn(0x20),
        sealed=Lsn(0x20),
    )
    source.change_counter += 1
    catalog = SystemCatalog(source)
    sql = (
        "select pid, usename, application_name, client_addr, client_port,"
        " backend_start is null, state, query, backend_type"
        " from pg_stat_activity order by pid::int"
    )
    hidden = (None, None, "t", None, "<insufficient privilege>", None)
    # The answers of PostgreSQL 18, where backend_type is hidden, too.
    assert catalog.query(sql, (), replace(session(), user="somebody"))[1] == [
        ("7", "postgres", "psql", *hidden),
        ("12", "postgres", "", *hidden),
    ]
    worker = "logical replication apply worker"
    for name in ("postgres", "reader"):
        assert catalog.query(sql, (), replace(session(), user=name))[1] == [
            ("7", "postgres", "psql", "127.0.0.1", "5555", "f", "active", "select 1",
             "client backend"),
            ("12", "postgres", "", None, None, "t", "idle", "", worker),
        ]  # fmt: skip
    catalog.close()
