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


class _Rows:
    """Collects a plugin's messages as rows."""

    def __init__(self, warn: Callable[[Wal2LakeError], None]) -> None:
        self._warn = warn
        self.rows: list[tuple[Lsn, int, bytes]] = []
        self.context: Context | None = None
        self.decoding: Decoding | None = None

    def write(self, payload: bytes, lsn: Lsn, last: bool) -> None:
        assert self.decoding is not None
        self.rows.append((lsn, self.decoding.xid, payload))

    def write_frames(self, data: memoryview) -> None:
        assert self.decoding is not None
        offset = 0
        while offset < len(data):
            size = int.from_bytes(data[offset + 1 : offset + 5], "big")
            lsn = Lsn(int.from_bytes(data[offset + 6 : offset + 14], "big"))
            body = bytes(data[offset + FRAME_HEADER : offset + 1 + size])
            self.rows.append((lsn, self.decoding.xid, body))
            offset += 1 + size

    def warn(self, warning: Wal2LakeError, lsn: Lsn) -> None:
        assert self.context is not None
        warning.context = callback_context(self.context, "change", lsn)
        self._warn(warning)


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
    """Decode everything visible now.

    ``up_to``, ``at_most``: limits; as in PostgreSQL, 0 means no limit. ``consume``: whether to
    confirm the changes to the slot. ``function``: name for the error about a plugin without text
    output. ``work_mem``: logical_decoding_work_mem, in bytes. ``warn`` takes warnings."""
    with publishing.slots.using(name, session) as slot:
        publishing.capture.catch_up_for_long()
        plugin = load_plugin(slot.plugin, publishing.allowed())
        output = _Rows(warn)
        publications = publishing.publications(output.warn)
        context = output.context = Context(
            slot.name,
            slot.plugin,
            output.write,
            output.write_frames,
            publications.sending,
            publications.table,
            publications.origin_number,
        )
        decoding = output.decoding = Decoding(
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
            raise _binary_output(slot.plugin, function)

        def go_on() -> bool:
            # As in PostgreSQL, 0 means no limit.
            enough = bool(at_most) and len(output.rows) >= (at_most or 0)
            return not enough and (not up_to or decoding.position < up_to)

        if go_on():
            with publishing.statistics.of(name, lambda: decoding.counts):
                decoding.advance(go_on)
        plugin.shutdown(context)
        if consume:
            publishing.slots.confirm(name, decoding.position)
        return DecodedChanges(output.rows, decoding.position)


def _binary_output(plugin: str, function: str) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f'logical decoding output plugin "{plugin}" produces binary output,'
        f' but function "{function}" expects textual data'
    )
