"""The publisher half: slots and subscribers, as lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType

from wal2lake.cli.top.columns import ColumnStyle, cell
from wal2lake.health import NodeFacts
from wal2lake.health.rules.words import in_bytes

SLOT_COLUMNS: Final = (
    ColumnStyle("slot", flexible=True),
    ColumnStyle("plugin"),
    ColumnStyle("active", right=True),
    ColumnStyle("confirmed", right=True),
    ColumnStyle("held back", right=True),
    ColumnStyle("state"),
)

SENDER_COLUMNS: Final = (
    ColumnStyle("subscriber", flexible=True),
    ColumnStyle("state"),
    ColumnStyle("to send", right=True),
    ColumnStyle("to flush", right=True),
    ColumnStyle("to replay", right=True),
    ColumnStyle("client", wide_only=True),
    ColumnStyle("slot", wide_only=True, width=16),
    ColumnStyle("PID", right=True, wide_only=True),
)


def slot_rows(facts: NodeFacts) -> Iterator[list[RenderableType]]:
    """Yield the cells of ``SLOT_COLUMNS``."""
    for slot in sorted(facts.slots, key=lambda s: (-s.retained_bytes, s.name)):
        lost = slot.wal_status == "lost"
        yield [
            cell(slot.name),
            cell(slot.plugin),
            cell("no" if slot.active_pid is None else str(slot.active_pid)),
            cell(str(slot.confirmed_lsn)),
            cell(in_bytes(slot.retained_bytes)),
            cell(slot.wal_status, "red" if lost else ""),
        ]


def sender_rows(facts: NodeFacts) -> Iterator[list[RenderableType]]:
    """Yield the cells of ``SENDER_COLUMNS``; distances are from the end of the log."""
    end = int(facts.published_lsn)
    for sender in facts.walsenders:
        yield [
            cell(sender.application_name),
            cell(sender.state),
            *(
                cell(in_bytes(max(end - int(lsn), 0)))
                for lsn in (sender.sent_lsn, sender.flushed_lsn, sender.replayed_lsn)
            ),
            cell(sender.client),
            cell(sender.slot_name or "-"),
            cell(str(sender.pid)),
        ]
