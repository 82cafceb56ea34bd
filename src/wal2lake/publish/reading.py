"""Reads a slot's changes as rows, for the SQL functions of logical decoding.

In: a slot, an end position, the plugin's options. Out: (position, xid, message) rows, and the
position reached. Only whole transactions: as in PostgreSQL, a limit is checked after each
transaction.

Source: pg_logical_slot_get_changes_guts() in logicalfuncs.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal2lake.changelog import LogReader
from wal2lake.errors import FeatureNotSupportedError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.publish.driver import Decoding, callback_context
from wal2lake.publish.plugins.loading import load_plugin
from wal2lake.publish.plugins.port import Context
from wal2lake.publish.service import Publishing
from wal2lake.wire.encoder import FRAME_HEADER


@dataclass(frozen=True, slots=True)
class DecodedChanges:
    """Decoded changes with the position reached."""

    rows: list[tuple[Lsn, int, bytes]]
    reached: Lsn
    """Position below which all changes are in ``rows``."""


def read_changes(
    publishing: Publishing,
    name: str,
    session: int,
    *,
    up_to: Lsn | None,
    at_most: int | None,
    options: Sequence[tuple[str, str | None]],
    binary: bool,
    consume: bool,
    function: str,
    work_mem: int,
    warn: Callable[[Wal2LakeError], None],
) -> DecodedChanges:
    """Decode what is visible now. ``up_to``: as in PostgreSQL 0 is no limit, too. ``consume``: the
    slot goes on behind it. ``function``: as the error for a plugin whose messages are no text names
    it. ``work_mem``: logical_decoding_work_mem, in bytes. ``warn`` takes warnings."""
    with publishing.slots.using(name, session) as slot:
        publishing.capture.catch_up_for_long()
        plugin = load_plugin(slot.plugin, publishing.allowed())
        rows: list[tuple[Lsn, int, bytes]] = []

        def write(payload: bytes, lsn: Lsn, last: bool) -> None:
            rows.append((lsn, decoding.xid, payload))

        def write_frames(data: memoryview) -> None:
            at = 0
            while at < len(data):
                size = int.from_bytes(data[at + 1 : at + 5], "big")
                lsn = Lsn(int.from_bytes(data[at + 6 : at + 14], "big"))
                body = bytes(data[at + FRAME_HEADER : at + 1 + size])
                rows.append((lsn, decoding.xid, body))
                at += 1 + size

        def tell(said: Wal2LakeError, lsn: Lsn) -> None:
            said.context = callback_context(context, "change", lsn)
            warn(said)

        publications = publishing.publications(tell)
        context = Context(
            slot.name,
            slot.plugin,
            write,
            write_frames,
            publications.sending,
            publications.table,
            publications.origin_number,
        )
        decoding = Decoding(
            LogReader(Path(publishing.log_directory)),
            plugin,
            context,
            slot.confirmed_lsn,
            work_mem,
        )
        decoding.begin(
            options,
            lambda: publishing.slots.need(name),
            lambda start: publishing.slots.begin_two_phase(name, start),
        )
        if not (binary or plugin.is_text):
            raise FeatureNotSupportedError(
                f'logical decoding output plugin "{slot.plugin}" produces binary output,'
                f' but function "{function}" expects textual data'
            )

        def go_on() -> bool:
            # As in PostgreSQL 0 is no limit.
            enough = bool(at_most) and len(rows) >= (at_most or 0)
            return not enough and (not up_to or decoding.position < up_to)

        if go_on():
            with publishing.statistics.of(name, lambda: decoding.counts):
                decoding.advance(go_on)
        plugin.shutdown(context)
        if consume:
            publishing.slots.confirm(name, decoding.position)
        return DecodedChanges(rows, decoding.position)
