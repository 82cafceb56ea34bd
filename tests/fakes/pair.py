"""A node and a native subscriber of PostgreSQL 18, fed the same stream.

Comes in: a publisher's database, a node, a database for the native subscriber. Goes out: the same
statements at both, and what both have then. Called by tests/node.
"""

from __future__ import annotations

import re
from typing import Final

from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

_STATES: Final = "select srrelid::regclass::text, srsubstate from pg_subscription_rel"


class Pair:
    """The node and the native subscriber, fed the same stream."""

    def __init__(self, source: Database, node: Node, peer: Database, name: str) -> None:
        self.source, self.node, self.peer, self.name = source, node, peer, name
        self.mirror = Mirror(node, source.conninfo(), name)
        self._marks = 0

    def subscribe(self, options: str = "", node: str = "create_tables = false") -> None:
        """Both subscribe and have copied all tables."""
        self.create(options, node)
        self.mirror.synced()
        wait_until(lambda: set(self.native_states().values()) == {"r"})

    def create(self, options: str = "", node: str = "create_tables = false") -> None:
        """CREATE SUBSCRIPTION at both; options of the node alone are in ``node``."""
        conninfo = quote_literal(self.source.conninfo())
        name, more = self.name, f", {options}" if options else ""
        self.node.sql(
            f"create subscription {name} connection {conninfo} publication {name}"
            f" with ({node}{more})"
        )
        # On the server that it subscribes to, the command cannot wait for its own slot.
        self.source.psql(
            f"select pg_create_logical_replication_slot('{name}_native', 'pgoutput')"
        )
        self.peer.psql(
            f"create subscription {name}_native connection {conninfo} publication {name}"
            f" with (create_slot = false, slot_name = {name}_native{more})"
        )

    def alter(self, rest: str) -> None:
        """ALTER SUBSCRIPTION at both."""
        self.node.sql(f"alter subscription {self.name} {rest}")
        self.peer.psql(f"alter subscription {self.name}_native {rest}")

    def states(self) -> dict[str, str]:
        """Of each table of the node's subscription."""
        rows = self.node.sql(
            f"{_STATES} join pg_subscription s on s.oid = srsubid"
            f" where subname = '{self.name}'"
        )
        return {str(table): str(state) for table, state in rows}

    def native_states(self) -> dict[str, str]:
        """Of each table of the native subscription."""
        lines = self.peer.psql(_STATES).splitlines()
        return dict(line.split("|") for line in lines)

    def both(self, sql: str) -> None:
        """The same statements, one by one."""
        for statement in filter(None, map(str.strip, sql.split(";"))):
            self.node.sql(statement)
            self.peer.psql(statement)

    def caught_up(self) -> None:
        """Both have all that the source has; of the native one a row of its own tells."""
        self._marks += 1
        self.source.psql(f"insert into {self.name}.mark values ({self._marks})")
        self.mirror.caught_up()
        wait_until(
            lambda: (
                self.peer.psql(f"select max(n) from {self.name}.mark")
                == str(self._marks)
            ),
        )

    def same(self, *tables: str, columns: str = "*") -> None:
        """What both have, in any order."""
        self.caught_up()
        self.look_same(*tables, columns=columns)

    def look_same(self, *tables: str, columns: str = "*") -> None:
        for table in tables:
            sql = f"select {columns} from {table}"
            theirs = sorted(self.peer.psql(sql).splitlines())
            ours = sorted(
                "|".join("" if v is None else v for v in row)
                for row in self.node.sql(sql)
            )
            assert ours == theirs, table

    def stopped(self) -> str:
        """The error that stops the node."""
        (row,) = self.node.wait_for(
            "select error from wal2lake.subscription_errors"
            f" where subname = '{self.name}' and worker = 'apply'"
        )
        return str(row[0])

    def same_context(self, error: str) -> None:
        """The native subscriber has said the same about where it has stopped, word by word, but
        for the origin's number."""
        context = re.search(r'CONTEXT:  (.* origin ")[^"]*(".*)', error)
        assert context is not None, error
        self.native_error(
            re.escape(context[1]) + '[^"]*' + re.escape(context[2]) + "\n"
        )

    def native_error(self, pattern: str) -> None:
        """Of the native subscriber, in its log."""
        wait_until(lambda: re.search(pattern, self.peer.server.log_text()) is not None)
