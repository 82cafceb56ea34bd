"""Problems that follow from facts: one test at least for each kind."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fakes.facts import ENGINE, GIB, NOW, SHOP, ago
from tests.fakes.facts import NODE as WHOLE

from wal2lake.catalog import EntryState, RegisteredTable, RegisteredTables, Verification
from wal2lake.errors import ApplyError
from wal2lake.health import (
    Concern,
    CopyFacts,
    DiskFacts,
    NodeFacts,
    PreparedTransactionFacts,
    Problem,
    ProblemClock,
    ProblemKind,
    Severity,
    SlotFacts,
    SourceFacts,
    StageLag,
    SubscriptionFacts,
    TableFacts,
    load_seen,
    problems,
    save_seen,
)
from wal2lake.health.rules.words import in_bytes, in_words
from wal2lake.model import Lsn, Oid, SyncState


def lag(seconds: float = 0.0) -> StageLag:
    return StageLag(Lsn(1000), 0, seconds)


ITEMS = TableFacts(Oid(2), "public", "items", SyncState.READY, behind_seconds=0.0)

STOCK = replace(
    SHOP,
    name="stock",
    received=lag(),
    durable=lag(),
    applied=lag(),
    visible=lag(),
    source=SourceFacts(slot_name="stock"),
    log_bytes=0,
    tables=(ITEMS,),
)

NODE = replace(
    WHOLE,
    processes=(ENGINE,),
    heap_bytes=None,
    heap_limit_bytes=None,
    engine_told_at=NOW,
    subscriptions=(STOCK,),
    slots=(),
    walsenders=(),
)

SLOT = SlotFacts("s'1", "pgoutput", None, Lsn(1), 0, "reserved", None)


def of(node: NodeFacts) -> list[Problem]:
    return list(problems(node, NOW))


def only(node: NodeFacts) -> Problem:
    (found,) = of(node)
    return found


def having(subscription: SubscriptionFacts) -> NodeFacts:
    return replace(NODE, subscriptions=(subscription,))


def failing(worker: str, text: str, sqlstate: str, **changes: object) -> NodeFacts:
    errors = {worker: (text, sqlstate, ago(minutes=5))}
    return having(replace(STOCK, errors=errors, **changes))  # type: ignore[arg-type]


def test_a_node_that_is_well_has_no_problem() -> None:
    assert of(NODE) == []


# ---- the node ----------------------------------------------------------------------------


def test_a_stopped_node_says_how_to_start_it() -> None:
    node = replace(NODE, state="stopped", processes=(), subscriptions=())
    found = only(node)
    assert (found.kind, found.severity) == ("stopped", Severity.ERROR)
    assert found.message == 'no node is running in "/srv/node"'
    assert found.hint == "Start it with: wal2lake start -D /srv/node"


def test_a_stopped_node_has_no_problems_of_running_parts() -> None:
    stock = replace(STOCK, state="down", receiver_pid=None, visible=lag(9999))
    node = replace(having(stock), state="stopped", processes=())
    assert [problem.kind for problem in of(node)] == ["stopped"]


def test_an_engine_that_is_down_comes_again_by_itself() -> None:
    found = only(replace(NODE, processes=()))
    assert (found.kind, found.severity) == ("engine", Severity.ERROR)
    assert found.concern is Concern.NOBODY
    # The supervisor waits before it starts the engine again.
    assert only(replace(NODE, processes=(), state="starting")) == found
    begun = replace(NODE, processes=(), state="starting", started_at=ago(seconds=1))
    assert of(begun) == []


def test_an_engine_that_starts_again_is_an_error_until_it_is_ready() -> None:
    engine = replace(ENGINE, restarts=2, started_at=ago(seconds=30))
    found = only(replace(NODE, processes=(engine,), state="starting"))
    assert (found.kind, found.severity) == ("engine", Severity.ERROR)
    assert found.message == (
        "the engine is starting again, 2 times since the node's start: nothing is"
        " applied, and clients wait"
    )


def test_an_engine_that_does_not_become_ready_is_a_warning() -> None:
    engine = replace(ENGINE, started_at=ago(minutes=4))
    found = only(replace(NODE, processes=(engine,), state="starting"))
    assert (found.kind, found.severity) == ("engine", Severity.WARNING)
    assert found.message == "the engine has been starting for 4 minutes"
    engine = replace(ENGINE, started_at=ago(minutes=1))
    assert of(replace(NODE, processes=(engine,), state="starting")) == []


def test_a_log_that_fills_while_the_engine_is_down_is_a_problem() -> None:
    stock = replace(STOCK, log_bytes=1000, log_limit_bytes=1000)
    node = replace(having(stock), processes=(), state="starting")
    assert {problem.kind for problem in of(node)} == {"engine", "log_limit"}


def test_an_engine_that_was_restarted_is_a_warning_for_a_minute() -> None:
    engine = replace(ENGINE, restarts=3, started_at=ago(seconds=30))
    found = only(replace(NODE, processes=(engine,)))
    assert (found.kind, found.severity) == ("engine", Severity.WARNING)
    assert found.message == "the engine was restarted 3 times since the node's start"
    assert found.since == ago(seconds=30)
    engine = replace(engine, started_at=ago(seconds=90))
    assert of(replace(NODE, processes=(engine,))) == []


def test_an_engine_that_does_not_report_is_an_error() -> None:
    found = only(replace(NODE, engine_told_at=ago(minutes=5)))
    assert (found.kind, found.severity) == ("engine_silent", Severity.ERROR)
    assert found.message == "the engine (PID 3) has not reported for 5 minutes"
    assert found.since == ago(minutes=5)
    # It has not had the time yet.
    engine = replace(ENGINE, started_at=ago(seconds=10))
    node = replace(NODE, engine_told_at=ago(minutes=5), processes=(engine,))
    assert of(node) == []


def registered(
    state: EntryState, table: str = "towns", error: str | None = "no answer"
) -> RegisteredTables:
    """A catalog in which an entry is in a state since an hour ago."""
    entry = RegisteredTable(
        "public",
        table,
        "lake_public",
        table,
        state,
        ago(hours=1).timestamp(),
        "digest",
        error,
        "08006",
        "Check catalog.uri, and that its server runs.",
    )
    return RegisteredTables("glue||||", "glue", {entry.qualified: entry})


def test_a_catalog_that_is_behind_is_one_problem() -> None:
    behind = registered(EntryState.PENDING)
    more = registered(EntryState.LEAVING, "lakes").tables
    behind = replace(behind, tables={**behind.tables, **more})
    found = only(replace(NODE, registered=behind))
    assert (found.kind, found.severity) == ("catalog", Severity.WARNING)
    assert found.message == "the catalog glue is behind by 2 tables: no answer"
    assert found.since == ago(hours=1)


def test_an_entry_that_is_only_due_is_no_problem() -> None:
    due = registered(EntryState.PENDING, error=None)
    assert not problems(replace(NODE, registered=due), NOW)


@pytest.mark.parametrize("state", [EntryState.CONFLICT, EntryState.REFUSED])
def test_a_table_that_the_catalog_cannot_have_is_a_problem(state: EntryState) -> None:
    found = only(replace(NODE, registered=registered(state)))
    assert (found.kind, found.table) == ("catalog_entry", "public.towns")
    assert found.subject == "lake_public.towns"
    assert found.message == 'table "public.towns" is not in the catalog: no answer'


def test_both_catalogs_may_be_behind() -> None:
    behind = registered(EntryState.PENDING)
    found = problems(replace(NODE, registered=behind, mirrored=behind), NOW)
    assert {str(problem.kind): problem.message for problem in found} == {
        "catalog": "the catalog glue is behind by 1 table: no answer",
        "iceberg_catalog": "the Iceberg catalog glue is behind by 1 table: no answer",
    }
    entry = only(replace(NODE, mirrored=registered(EntryState.CONFLICT)))
    assert entry.kind == "iceberg_catalog_entry"
    assert entry.message == (
        'table "public.towns" is not in the Iceberg catalog: no answer'
    )


def test_invalid_settings_are_a_warning() -> None:
    found = only(replace(NODE, settings_error='unrecognized parameter "node.portt"'))
    assert found.kind == "settings"
    assert 'unrecognized parameter "node.portt"' in found.message


@pytest.mark.parametrize(
    ("free", "size", "severity"),
    [
        (50, 100, None),
        (9, 100, Severity.WARNING),
        (2, 100, Severity.ERROR),
        (21, 1000, None),
        (19, 1000, Severity.WARNING),
        (4, 1000, Severity.ERROR),
        (1, 8, None),
    ],
)
def test_a_disk_is_low_below_a_part_and_a_size(
    free: int, size: int, severity: Severity | None
) -> None:
    disk = DiskFacts("log", "/srv/log", free * GIB, size * GIB, 1)
    found = of(replace(NODE, disks=(disk,)))
    assert [problem.severity for problem in found] == ([severity] if severity else [])


def test_purposes_on_one_disk_are_one_problem() -> None:
    disks = (
        DiskFacts("catalog", "/srv/node", GIB, 100 * GIB, 1),
        DiskFacts("log", "/srv/node/log", GIB, 100 * GIB, 1),
        DiskFacts("warehouse", "/lake", GIB, 200 * GIB, 2),
    )
    first, second = of(replace(NODE, disks=disks))
    assert first.message == (
        "the file system of catalog and log has only 1024 MB of 100 GB left"
    )
    assert (first.subject, second.subject) == ("catalog", "warehouse")


def test_a_certificate_is_a_warning_then_an_error_then_expired() -> None:
    def found(left: timedelta) -> Problem:
        return only(replace(NODE, certificate_ends=NOW + left))

    assert of(replace(NODE, certificate_ends=NOW + timedelta(days=31))) == []
    early = found(timedelta(days=29))
    assert (early.kind, early.severity) == ("certificate", Severity.WARNING)
    assert early.message == "the TLS certificate expires in 29 days"
    assert early.since == ago(days=1)
    assert early.remedy == "SELECT pg_reload_conf();"
    assert found(timedelta(days=6)).severity is Severity.ERROR
    late = found(timedelta(hours=-1))
    assert late.message == "the TLS certificate has expired on 2026-05-04 02:02 UTC"
    assert late.since == ago(hours=1)


# ---- errors ------------------------------------------------------------------------------

CONFLICT = ApplyError(
    'conflict detected on relation "public.items": conflict=insert_exists',
    sqlstate="23505",
    detail='Key already exists in unique index "items_pkey", modified in transaction 7.\n'
    "Key (id)=(2); existing local row (2, written here); remote row (2, ink).",
    hint="Transactions before this one have been applied. Delete the row that has this"
    " key here (wal2lake.conflicts names it), skip this transaction (ALTER SUBSCRIPTION"
    " ... SKIP (lsn = '0/1AB')), choose a conflict_resolution (ALTER SUBSCRIPTION ...",
    context='processing remote data for replication origin "pg_1" during message type'
    ' "INSERT" for replication target relation "public.items" in transaction 12,'
    " finished at 0/1AB",
).describe()


def test_a_row_in_the_way_is_deleted() -> None:
    found = only(failing("apply", CONFLICT, "23505"))
    assert (found.kind, found.subject, found.table) == (
        "errored",
        "apply",
        "public.items",
    )
    assert found.severity is Severity.ERROR
    assert found.message == (
        'subscription "stock" cannot apply: conflict detected on relation'
        ' "public.items": conflict=insert_exists'
    )
    assert (found.sqlstate, found.since) == ("23505", ago(minutes=5))
    assert "finished at 0/1AB" in (found.detail or "")
    assert "Delete the row" in (found.hint or "")
    assert found.remedy == """DELETE FROM "public"."items" WHERE "id" = '2';"""


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        (
            "Key (a, b)=(1, o'k).",
            """DELETE FROM "public"."items" WHERE "a" = '1' AND "b" = 'o''k';""",
        ),
        (
            "Key (a, b)=(1, x, y).",
            "SELECT wal2lake.recopy_table('\"public\".\"items\"', 'stock');",
        ),
        (
            "Key (id)=(xxxx...).",
            "SELECT wal2lake.recopy_table('\"public\".\"items\"', 'stock');",
        ),
        (
            "no key is shown",
            "SELECT wal2lake.recopy_table('\"public\".\"items\"', 'stock');",
        ),
    ],
)
def test_a_key_that_cannot_be_told_for_certain_has_the_table_copied(
    key: str, remedy: str
) -> None:
    shown = "Key (id)=(2); existing local row (2, written here); remote row (2, ink)."
    found = only(failing("apply", CONFLICT.replace(shown, key), "23505"))
    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("message", "hint", "remedy"),
    [
        (
            'null value in column "name" of relation "public.items" violates not-null'
            " constraint",
            'ALTER TABLE ... ALTER COLUMN "Name" DROP NOT NULL here lets it go on, if'
            " NULL is allowed at the source.",
            'ALTER TABLE "public"."items" ALTER COLUMN "Name" DROP NOT NULL;',
        ),
        (
            'new row for relation "public.items" violates check constraint "odd"',
            "If the source may have such rows, ALTER TABLE ... DROP CONSTRAINT on the"
            " table here lets it go on.",
            'ALTER TABLE "public"."items" DROP CONSTRAINT "odd";',
        ),
        (
            'column "sum" of relation "public.items" cannot be computed',
            "If the source may have such rows, ALTER TABLE ... ALTER COLUMN sum DROP"
            " EXPRESSION on the table here lets it go on.",
            'ALTER TABLE "public"."items" ALTER COLUMN sum DROP EXPRESSION;',
        ),
        (
            "numeric field overflow",
            'Add "public.items.price = null" (or clamp: the nearest value, if there is'
            " one) to value_policies (ALTER SUBSCRIPTION ... SET); or, to keep the value,"
            ' add "public.items.price = string" to type_mappings (ALTER SUBSCRIPTION ...'
            " SET), drop the table here and run ALTER SUBSCRIPTION ... REFRESH"
            " PUBLICATION: it is created with a text column, and copied.",
            'ALTER SUBSCRIPTION "stock" SET (value_policies ='
            " 'float8 = clamp, public.items.price = null');",
        ),
        (
            "invalid byte in binary value",
            "ALTER SUBSCRIPTION ... SET (binary = false), if it is true; then drop the"
            " table here",
            'ALTER SUBSCRIPTION "stock" SET (binary = false);\n'
            'DROP TABLE "public"."items";\n'
            'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION;',
        ),
        (
            'logical replication target relation "public.items" is missing replicated'
            ' column: "price"',
            "ALTER TABLE ... ADD COLUMN on the target lets it go on; rows that are there"
            " get the column's default. With the publisher's values: drop the table here"
            " and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION, which creates it as it"
            " is at the source, and copies it.",
            'DROP TABLE "public"."items";\nALTER SUBSCRIPTION "stock" REFRESH'
            " PUBLICATION;",
        ),
        (
            'logical replication target relation "public.items" has neither REPLICA'
            " IDENTITY index nor PRIMARY KEY",
            "Give the table a primary key at the source; then drop the table here and run"
            " ALTER SUBSCRIPTION ... REFRESH PUBLICATION",
            None,
        ),
        (
            'logical replication target relation "public.gone" does not exist',
            "If the publisher still has the table, ALTER SUBSCRIPTION ... REFRESH"
            " PUBLICATION creates and copies it, and replication goes on.",
            'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION;',
        ),
        (
            "something else",
            "Skip this one (ALTER SUBSCRIPTION ... SKIP (lsn = '0/1AB')), or not.",
            """ALTER SUBSCRIPTION "stock" SKIP (lsn = '0/1AB');""",
        ),
        ("a file is damaged", None, None),
    ],
)
def test_an_error_of_apply_has_the_remedy_that_its_hint_names(
    message: str, hint: str | None, remedy: str | None
) -> None:
    context = (
        'processing remote data for replication target relation "public.items" in'
        " transaction 12, finished at 0/1AB"
    )
    text = ApplyError(message, hint=hint, context=context).describe()
    found = only(failing("apply", text, "22000", value_policies="float8 = clamp"))
    assert found.remedy == remedy
    assert found.hint == hint
    assert found.concern is Concern.OPERATOR


def test_names_are_quoted_in_remedies() -> None:
    odd = replace(ITEMS, namespace="S", name="o\"d'd")
    stock = replace(STOCK, name='a"b', tables=(replace(odd, paused_since=NOW),))
    found = only(having(stock))
    assert found.remedy == ("""SELECT wal2lake.resume_table('"S"."o""d''d"', 'a"b');""")


@pytest.mark.parametrize(
    ("text", "sqlstate", "kind", "concern", "remedy"),
    [
        ("connection refused", "08001", "receiver", Concern.SOURCE, None),
        ("the system is starting up", "57P03", "receiver", Concern.SOURCE, None),
        ("password failed", "28P01", "receiver", Concern.OPERATOR, None),
        ("too many connections", "53300", "receiver", Concern.SOURCE, None),
        ("permission denied for t", "42501", "receiver", Concern.SOURCE, None),
        (
            'replication slot "stock" is active for PID 4711',
            "55006",
            "receiver",
            Concern.SOURCE,
            "SELECT pg_terminate_backend(4711);",
        ),
        (
            'replication slot "stock" does not exist\nHINT:  Create it on the publisher:'
            " SELECT pg_create_logical_replication_slot('stock', 'pgoutput').",
            "42704",
            "slot_lost",
            Concern.SOURCE,
            "SELECT pg_create_logical_replication_slot('stock', 'pgoutput');",
        ),
        (
            'can no longer access replication slot "stock"\nDETAIL:  This replication'
            ' slot has been invalidated due to "wal_removed".\nHINT:  What was committed'
            " since cannot be received any more: ALTER SUBSCRIPTION ... REFRESH"
            " PUBLICATION WITH (recopy = true), which makes a new slot",
            "55000",
            "slot_lost",
            Concern.OPERATOR,
            'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION WITH (recopy = true);',
        ),
    ],
)
def test_an_error_of_the_receiver_concerns_who_can_end_it(
    text: str, sqlstate: str, kind: str, concern: Concern, remedy: str | None
) -> None:
    found = only(failing("receiver", text, sqlstate))
    assert (found.kind, found.concern, found.remedy) == (kind, concern, remedy)
    assert found.message.startswith('subscription "stock" cannot receive: ')


def test_a_receiver_that_is_not_there_is_started_again() -> None:
    found = only(having(replace(STOCK, state="down", receiver_pid=None)))
    assert (found.kind, found.severity) == ("receiver", Severity.WARNING)
    assert found.concern is Concern.NOBODY


def test_a_subscription_that_was_disabled_by_hand_is_a_warning() -> None:
    stock = replace(STOCK, enabled=False, state="disabled", receiver_pid=None)
    found = only(having(stock))
    assert (found.kind, found.severity) == ("disabled", Severity.WARNING)
    assert found.message == 'subscription "stock" is disabled'
    assert found.remedy == 'ALTER SUBSCRIPTION "stock" ENABLE;'


def test_a_subscription_that_an_error_has_disabled_is_an_error_beside_it() -> None:
    node = failing(
        "apply",
        CONFLICT,
        "23505",
        enabled=False,
        state="disabled",
        receiver_pid=None,
        disable_on_error=True,
    )
    disabled, errored = of(node)
    assert (errored.kind, disabled.kind) == ("errored", "disabled")
    assert disabled.severity is Severity.ERROR
    assert disabled.since == ago(minutes=5)
    assert disabled.message.endswith("because of an error (disable_on_error)")


def test_a_subscription_without_a_slot_is_a_warning() -> None:
    stock = replace(
        STOCK, enabled=False, state="disabled", source=SourceFacts(slot_name=None)
    )
    found = only(having(stock))
    assert found.kind == "no_slot"
    assert found.remedy == (
        """ALTER SUBSCRIPTION "stock" SET (slot_name = 'stock');\n"""
        'ALTER SUBSCRIPTION "stock" ENABLE;'
    )


# ---- log and source ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        (799, None),
        (800, "log_near_limit"),
        (999, "log_near_limit"),
        (1000, "log_limit"),
    ],
)
def test_a_log_is_near_its_limit_then_at_it(size: int, kind: str | None) -> None:
    stock = replace(STOCK, log_bytes=size, log_limit_bytes=1000, log_warning_bytes=800)
    assert [p.kind for p in of(having(stock))] == ([kind] if kind else [])


def test_a_receiver_that_stops_at_the_limit_of_its_log_is_one_problem() -> None:
    error = (
        "change log has 1000 bytes, limit is 1000\nHINT:  Raise log.size_limit_bytes."
    )
    errors = {"receiver": (error, "53100", ago(minutes=1))}
    stock = replace(STOCK, log_bytes=1000, log_limit_bytes=1000, errors=errors)
    problem = only(having(stock))
    assert (problem.kind, problem.concern) == ("log_limit", "operator")
    assert "and may have 1000 bytes" in problem.message
    # The size that was measured last may still be below.
    problem = only(having(replace(stock, log_bytes=700)))
    assert (problem.kind, problem.concern) == ("log_limit", "operator")


def test_a_log_that_paused_tables_hold_is_freed_by_resuming_them() -> None:
    paused = replace(ITEMS, paused_since=ago(minutes=1))
    stock = replace(STOCK, log_bytes=1000, log_limit_bytes=1000, tables=(paused,))
    first, second = of(having(stock))
    assert (first.kind, second.kind) == ("log_limit", "paused")
    assert first.remedy == second.remedy


def test_wal_held_near_the_limit_of_the_source_concerns_the_source() -> None:
    source = SourceFacts(
        slot_name="slot1",
        wal_status="extended",
        retained_bytes=90 << 20,
        limit_bytes=100 << 20,
    )
    found = only(having(replace(STOCK, source=source)))
    assert (found.kind, found.severity) == ("wal_held", Severity.WARNING)
    assert found.concern is Concern.SOURCE
    assert found.message == (
        'replication slot "slot1" holds 90 MB of WAL at the source, which keeps 100 MB'
        " for it"
    )
    assert found.remedy == (
        "ALTER SYSTEM SET max_slot_wal_keep_size = '200MB';\nSELECT pg_reload_conf();"
    )
    beyond = replace(source, wal_status="unreserved", retained_bytes=110 << 20)
    found = only(having(replace(STOCK, source=beyond)))
    assert (found.kind, found.severity) == ("wal_held", Severity.ERROR)
    fine = replace(source, retained_bytes=70 << 20)
    assert of(having(replace(STOCK, source=fine))) == []


def test_a_slot_that_the_source_has_lost_has_all_tables_copied_again() -> None:
    source = SourceFacts(slot_name="slot1", wal_status="lost")
    found = only(having(replace(STOCK, source=source)))
    assert (found.kind, found.severity) == ("slot_lost", Severity.ERROR)
    assert found.remedy == (
        'ALTER SUBSCRIPTION "stock" REFRESH PUBLICATION WITH (recopy = true);'
    )


def test_a_slot_that_is_known_to_be_lost_twice_is_one_problem() -> None:
    text = 'can no longer access replication slot "stock"'
    source = SourceFacts(slot_name="stock", wal_status="lost")
    found = only(failing("receiver", text, "55000", source=source))
    assert (found.kind, found.sqlstate) == ("slot_lost", "55000")


# ---- tables ------------------------------------------------------------------------------


def test_a_copy_that_fails_names_its_table() -> None:
    text = ApplyError(
        'table "public.items" is not empty',
        detail="2 rows",
        hint="The table has rows that are copied now. Remove them, and the copy goes on."
        " ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true) replaces all",
        context="COPY public.items",
    ).describe()
    table = replace(ITEMS, state=SyncState.DATASYNC, error=text, sqlstate="55000")
    found = only(having(replace(STOCK, tables=(table,))))
    assert (found.kind, found.table, found.sqlstate) == (
        "table_errored",
        "public.items",
        "55000",
    )
    assert found.remedy == (
        "SELECT wal2lake.recopy_table('\"public\".\"items\"', 'stock');"
    )
    assert found.detail == "2 rows\nCOPY public.items"


def test_a_pause_is_a_problem_and_another_one_after_a_day() -> None:
    def paused(since: datetime) -> Problem:
        table = replace(ITEMS, paused_since=since)
        return only(having(replace(STOCK, tables=(table,))))

    short = paused(ago(hours=2))
    assert (short.kind, short.since) == ("paused", ago(hours=2))
    assert short.message == 'table "public.items" of subscription "stock" is paused'
    long = paused(ago(days=3))
    assert (long.kind, long.since) == ("paused_long", ago(days=3))
    assert long.message.endswith("is paused for 3 days")


def test_rows_that_differ_are_a_problem_until_they_are_repaired() -> None:
    noted = Verification(
        Oid(1),
        ITEMS.oid,
        Lsn(9),
        ago(hours=1).isoformat(),
        blocks=1,
        rows=90,
        differing_rows=2,
        verified_lsn=None,
        verified_at=None,
        different_lsn=Lsn(9),
        different_at=ago(hours=1).isoformat(),
        repaired_rows=0,
    )
    table = replace(ITEMS, verification=noted)
    problem = only(having(replace(STOCK, tables=(table,))))
    assert (problem.kind, problem.since) == ("different", ago(hours=1))
    assert problem.message == (
        'table "public.items" of subscription "stock" differs from its source in 2 rows'
    )
    assert problem.remedy == 'REPAIR TABLE "public"."items";'
    assert problem.hint == (
        "wal2lake.differences lists the rows. If the lake's rows are meant, because sessions"
        " have written them, do not repair them."
    )
    repaired = replace(table, verification=replace(noted, differing_rows=0))
    assert of(having(replace(STOCK, tables=(repaired,)))) == []


def test_a_copy_without_progress_is_stuck() -> None:
    copy = CopyFacts(5, 10, 0, None, 0, 1, None, None, ago(minutes=16))
    table = replace(ITEMS, state=SyncState.DATASYNC, copy=copy, behind_seconds=None)
    found = only(having(replace(STOCK, tables=(table,))))
    assert (found.kind, found.since) == ("copy_stuck", ago(minutes=16))
    moving = replace(table, copy=replace(copy, progressed_at=ago(minutes=14)))
    assert of(having(replace(STOCK, tables=(moving,)))) == []


# ---- lateness ----------------------------------------------------------------------------


def test_a_table_that_breaks_its_freshness_names_the_stage() -> None:
    table = replace(ITEMS, freshness=2.0, behind_seconds=10.0)
    stock = replace(
        STOCK,
        received=lag(0),
        durable=lag(1),
        applied=lag(9),
        visible=lag(10),
        tables=(table,),
    )
    found = only(having(stock))
    assert (found.kind, found.stage) == ("late", "applied")
    assert (found.severity, found.concern) == (Severity.ERROR, Concern.NOBODY)
    assert found.since == ago(seconds=8)
    assert found.message == (
        'table "public.items" of subscription "stock" is 10 seconds behind its source,'
        " more than its freshness of 2 seconds"
    )
    fine = replace(table, behind_seconds=1.9)
    assert of(having(replace(stock, tables=(fine,)))) == []


def test_a_paused_table_is_late_by_itself() -> None:
    table = replace(
        ITEMS, freshness=2.0, behind_seconds=100.0, paused_since=ago(seconds=100)
    )
    late, paused = of(having(replace(STOCK, tables=(table,))))
    assert (late.kind, late.stage, paused.kind) == ("late", "applied", "paused")
    assert late.concern is Concern.OPERATOR


@pytest.mark.parametrize(
    ("lags", "stage"),
    [
        ((100, 100, 100, 100), "received"),
        ((0, 100, 100, 100), "durable"),
        ((0, 0, 100, 100), "applied"),
        ((0, 0, 0, 100), "visible"),
    ],
)
def test_a_subscription_that_is_far_behind_is_late(
    lags: tuple[float, ...], stage: str
) -> None:
    received, durable, applied, visible = map(lag, lags)
    stock = replace(
        STOCK, received=received, durable=durable, applied=applied, visible=visible
    )
    found = only(having(stock))
    assert (found.kind, found.stage, found.table) == ("late", stage, None)
    assert found.since == ago(seconds=40)


def test_what_another_problem_explains_is_not_said_twice() -> None:
    stock = replace(STOCK, enabled=False, state="disabled", visible=lag(1000))
    assert only(having(stock)).kind == "disabled"


# ---- the publisher half ------------------------------------------------------------------


def test_an_invalidated_slot_can_be_dropped() -> None:
    slot = replace(SLOT, wal_status="lost", invalidation="wal_removed")
    found = only(replace(NODE, slots=(slot,)))
    assert (found.kind, found.subject) == ("publisher_slot_lost", "s'1")
    assert found.remedy == "SELECT pg_drop_replication_slot('s''1');"


def test_a_slot_near_its_limit_is_a_warning_then_an_error() -> None:
    near = replace(SLOT, retained_bytes=85, limit_bytes=100, active_pid=5)
    found = only(replace(NODE, slots=(near,)))
    assert (found.kind, found.severity) == ("publisher_wal_held", Severity.WARNING)
    assert found.remedy is None
    beyond = replace(near, wal_status="unreserved", active_pid=None)
    found = only(replace(NODE, slots=(beyond,)))
    assert found.severity is Severity.ERROR
    assert found.remedy is not None


def test_an_inactive_slot_that_holds_much_is_a_warning() -> None:
    slot = replace(SLOT, retained_bytes=2 * GIB)
    assert only(replace(NODE, slots=(slot,))).kind == "publisher_slot_inactive"
    assert of(replace(NODE, slots=(replace(slot, active_pid=5),))) == []
    assert of(replace(NODE, slots=(replace(slot, temporary=True),))) == []


def test_a_transaction_that_was_prepared_long_ago_is_a_warning() -> None:
    old = PreparedTransactionFacts("g'1", ago(hours=3))
    new = PreparedTransactionFacts("g2", ago(minutes=3))
    found = only(replace(NODE, prepared=(old, new)))
    assert (found.kind, found.subject) == ("prepared", "g'1")
    assert found.message == """transaction "g'1" has been prepared for 3 hours"""
    assert found.remedy == "ROLLBACK PREPARED 'g''1';"


def test_a_commit_that_does_not_end_is_a_warning() -> None:
    node = replace(NODE, unfinished_commits=1, unfinished_since=ago(minutes=2))
    assert only(node).kind == "local_commit"
    node = replace(node, unfinished_since=ago(seconds=2))
    assert of(node) == []


# ---- all together ------------------------------------------------------------------------


def test_errors_come_first_then_the_oldest() -> None:
    tables = tuple(
        replace(ITEMS, name=name, paused_since=since)
        for name, since in (("b", ago(hours=1)), ("a", ago(hours=2)))
    )
    stock = replace(STOCK, tables=tables)
    node = replace(having(stock), engine_told_at=ago(minutes=5))
    found = [(problem.kind, problem.table) for problem in of(node)]
    assert found == [
        ("engine_silent", None),
        ("paused", "public.a"),
        ("paused", "public.b"),
    ]


def test_each_kind_is_documented() -> None:
    page = Path("docs/reference/problems.md").read_text(encoding="utf-8")
    assert [kind for kind in ProblemKind if f"`{kind}`" not in page] == []


def test_each_kind_has_a_test_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [kind for kind in ProblemKind if f'"{kind}"' not in source] == []


# ---- since -------------------------------------------------------------------------------


def test_a_problem_without_a_time_began_when_it_was_first_seen() -> None:
    clock = ProblemClock()
    low = Problem("disk", Severity.WARNING, "low", Concern.OPERATOR)
    assert clock.follow([low], ago(hours=1))[0].since == ago(hours=1)
    assert clock.follow([low], NOW)[0].since == ago(hours=1)
    assert clock.follow([], NOW) == ()
    assert clock.follow([low], NOW)[0].since == NOW


def test_an_error_with_another_text_has_lasted_since_the_first_one() -> None:
    clock = ProblemClock()
    error = Problem("errored", Severity.ERROR, "e", Concern.OPERATOR, ago(hours=2))
    clock.follow([error], ago(hours=1))
    later = replace(error, since=ago(minutes=1))
    assert clock.follow([later], NOW)[0].since == ago(hours=2)
    # A second pause is another pause.
    pause = Problem("paused", Severity.WARNING, "p", Concern.OPERATOR, ago(hours=2))
    clock.follow([pause], ago(hours=1))
    assert clock.follow([replace(pause, since=NOW)], NOW)[0].since == NOW


def test_times_are_handed_to_other_processes(tmp_path: Path) -> None:
    low = Problem("disk", Severity.WARNING, "low", Concern.OPERATOR, subject="log")
    clock = ProblemClock()
    clock.follow([low], ago(hours=1))
    now = datetime.now(UTC)
    assert load_seen(tmp_path, now) == {}
    save_seen(tmp_path, clock.seen)
    assert load_seen(tmp_path, now) == {("disk", "", "", "log"): ago(hours=1)}
    other = ProblemClock()
    other.learn(load_seen(tmp_path, now))
    assert other.follow([low], NOW)[0].since == ago(hours=1)
    assert load_seen(tmp_path, now + timedelta(hours=1)) == {}
    (tmp_path / "problems.json").write_text("[[1, 2], 3")
    assert load_seen(tmp_path, now) == {}


def test_durations_and_sizes_are_written_in_words() -> None:
    seconds = (0, 0.25, 1, 1.5, 9.97, 119, 120, 7199, 7200, 172_800)
    assert [in_words(value) for value in seconds] == [
        "0 seconds",
        "250 ms",
        "1 second",
        "1.5 seconds",
        "10 seconds",
        "119 seconds",
        "2 minutes",
        "119 minutes",
        "2 hours",
        "2 days",
    ]
    assert [in_bytes(size) for size in (0, 10_239, 10_240, 90 << 20, 5 << 40)] == [
        "0 bytes",
        "10239 bytes",
        "10 kB",
        "90 MB",
        "5120 GB",
    ]
