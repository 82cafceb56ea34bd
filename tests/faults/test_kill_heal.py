"""SIGKILL while tables are healed: at each durable step the readers see one whole state, and at the
end the tables have the rows of the source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.failpoints import wait_reached

from wal2lake.errors import Wal2LakeError
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

TABLES = """
create table kh (id int primary key, v int);
insert into kh select i, 10 from generate_series(1, 2000) i;
create table kh_sum (id int primary key, v int);
insert into kh_sum values (1, 20000);
create publication kh for table kh, kh_sum;
"""

BALANCED = "select (select sum(v) from kh) = (select sum(v) from kh_sum)"

STEPS = (
    "recopy.marked",
    "recopy.slot_dropped",
    "recopy.log_removed",
    "recopy.slot_created",
    "recopy.recorded",
    "copy.snapshot_taken",
    "heal.staged",
    "heal.committed",
    "copy.state_written",
    "apply.vector_recorded",
)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [STEPS[:5], STEPS[5:]], ids=["slot", "copy"])
def test_sigkill_at_each_step_of_a_heal(
    steps: tuple[str, ...],
    make_node: Callable[..., Node],
    pg18: Database,
    tmp_path: Path,
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(TABLES)
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    node.sql(
        f"create subscription kh connection {quote_literal(pg18.conninfo())}"
        " publication kh with (history = 'kept')"
    )
    mirror = Mirror(node, pg18.conninfo(), "kh")
    mirror.synced()
    for number, step in enumerate(steps, 1):
        mirror.caught_up()
        node.sql("alter subscription kh disable")
        wait_until(
            lambda: pg18.psql("select active from pg_replication_slots") == "f",
            describe="the slot is free",
        )
        # The slot skips what is written now.
        pg18.psql(
            f"begin; update kh set v = v + 1 where id = {number};"
            f" delete from kh where id = {number + 100};"
            f" insert into kh values ({number + 3000}, 10);"
            " update kh_sum set v = v + 1; commit;"
            " select pg_replication_slot_advance('kh', pg_current_wal_lsn())"
        )
        node.sql("alter subscription kh enable")
        node.wait_for(
            "select 1 from wal2lake.subscription_errors where subname = 'kh'",
            timeout_seconds=60,
        )
        arm(points, step, "kill-tree")
        with contextlib.suppress(Wal2LakeError):
            node.sql("alter subscription kh refresh publication with (heal = true)")
        wait_reached(node, points, step)
        node.wait_end()
        pg18.psql(
            f"begin; update kh set v = v + 5 where id = {number + 500};"
            " update kh_sum set v = v + 5; commit"
        )
        node.start()
        assert node.value(BALANCED) == "t", step
        with contextlib.suppress(Wal2LakeError):
            # The first step is before the point from which the node goes on by itself.
            node.sql("alter subscription kh refresh publication with (heal = true)")
        mirror.synced()
        assert node.value(BALANCED) == "t", step
        mirror.assert_equal(["public.kh", "public.kh_sum"])
        proofs = node.sql("verify subscription kh")
        assert {row[2] for row in proofs} == {"equal"}, proofs
    assert "table healed" in node.log_text()
    assert "table cannot be healed" not in node.log_text()
    # A change that was missed is recorded as one, and no rows are recorded anew.
    assert node.sql(
        "select op, old_v, new_v from kept.kh where new_id = 1 and op <> 'snapshot'"
    ) == [("update", "10", "11")]
    assert node.sql("select count(*) from kept.kh where op = 'truncate'") == [("0",)]
    node.sql("drop subscription kh")
