"""Comparison of a node's copy with its source, with which most tests end.

``caught_up`` waits as PostgreSQL's own tests do (``wait_for_catchup``): until the
source's pg_stat_replication shows the subscription's replay position at or past the
source's current end of WAL. ``differences`` then compares tables row by row, as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wal2lake.errors import PublisherError
from wal2lake.pg import Session, connect
from wal2lake.testing.node import Node
from wal2lake.testing.positions import END_OF_WAL
from wal2lake.testing.waits import wait_until


class Mirror:
    """A subscription of a node and its source."""

    def __init__(self, node: Node, source_conninfo: str, subscription: str) -> None:
        """``source_conninfo`` reaches the publisher itself, not a proxy."""
        self.node = node
        self.subscription = subscription
        self._conninfo = source_conninfo

    def source(self) -> Session:
        """A new session at the source; its search_path is empty."""
        return connect(self._conninfo, application_name="mirror")

    def caught_up(self, timeout_seconds: float = 120.0) -> str:
        """Wait until the subscription has replayed the source's WAL; returns its end LSN."""
        target = self._ask(END_OF_WAL)

        def reached() -> bool:
            answer = self._ask(
                "select bool_or(replay_lsn >= "
                f"'{target}'::pg_lsn and flush_lsn >= '{target}'::pg_lsn)"
                " from pg_stat_replication"
                f" where application_name = '{self.subscription}'"
            )
            return answer == "t"

        wait_until(
            reached,
            timeout_seconds=timeout_seconds,
            describe=lambda: (
                f"{self.subscription} has replayed {target}; it is at "
                + str(
                    self._rows(
                        "select write_lsn, flush_lsn, replay_lsn, state,"
                        " application_name from pg_stat_replication"
                    )
                )
                + f"\nlog:\n{self.node.log_text()[-6000:]}"
            ),
        )
        return target

    def synced(self, timeout_seconds: float = 120.0) -> None:
        """Wait until every table of the subscription is ready."""
        self.node.wait_for(
            "select srsubstate from pg_subscription_rel r join pg_subscription s"
            f" on s.oid = r.srsubid where s.subname = '{self.subscription}'",
            lambda rows: bool(rows) and all(row[0] == "r" for row in rows),
            timeout_seconds=timeout_seconds,
        )

    def differences(self, tables: Sequence[str]) -> list[str]:
        """Return one line for each table that differs. Names are qualified."""
        lines = []
        for table in tables:
            theirs = Counter(self._rows(f"select * from {table}"))
            ours = Counter(self.node.sql(f"select * from {table}"))
            if theirs != ours:
                missing = list((theirs - ours).items())[:3]
                extra = list((ours - theirs).items())[:3]
                lines.append(
                    f"{table}: {sum(theirs.values())} rows at the source,"
                    f" {sum(ours.values())} here; missing {missing}, extra {extra}"
                )
        return lines

    def assert_equal(self, tables: Sequence[str]) -> None:
        """Catch up, then compare."""
        self.caught_up()
        different = self.differences(tables)
        assert not different, "\n".join(different)

    def _rows(self, sql: str) -> list[tuple[str | None, ...]]:
        with self.source() as session:
            return session.query(sql)

    def _ask(self, sql: str) -> str:
        try:
            return str(self._rows(sql)[0][0])
        except PublisherError:
            # The source may be restarting: the caller asks again.
            return ""
