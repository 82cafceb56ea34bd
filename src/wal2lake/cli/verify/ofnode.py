"""Has a running node compare tables with their sources. The node does the work (VERIFY).

Called by: ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wal2lake.cli.verify.report import VerifiedTable
from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_ident


def ask_node(
    conninfo: str,
    tables: Sequence[str],
    subscription: str | None,
    tell: Callable[[str], None],
) -> list[VerifiedTable] | Failure:
    """Send VERIFY. ``tell``: gets the node's word about each table as it is done."""
    statement = "VERIFY"
    if tables:
        # A name is written as in SQL, with quotes where it needs them.
        statement += f" TABLE {', '.join(tables)}"
    if subscription is not None:
        statement += f" SUBSCRIPTION {quote_ident(subscription)}"
    with Client(conninfo, on_notice=lambda notice: tell(notice.message)) as client:
        outcome = next(client.run(statement), None)
    if outcome is None:
        raise PublisherError("the node has not answered")
    if isinstance(outcome, Failure):
        return outcome
    return [VerifiedTable.of(row) for row in outcome.rows]
