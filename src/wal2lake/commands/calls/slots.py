"""Functions that create, copy, drop, advance and read replication slots.

Takes the functions' arguments and the caller; returns rows as dicts by column. Changes are durable
on return.

Source: slotfuncs.c, logicalfuncs.c; manual, section 9.28.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal2lake.errors import (
    FeatureNotSupportedError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasPublishing
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.publish.plugins.loading import load_plugin
from wal2lake.publish.reading import read_changes
from wal2lake.publish.service import Publishing
from wal2lake.sql.backend import Notice

Row = Mapping[str, object]


def create_slot(
    node: HasPublishing,
    caller: Caller,
    name: str,
    plugin: str,
    temporary: bool,
    two_phase: bool,
    failover: bool,
) -> list[Row]:
    """pg_create_logical_replication_slot."""
    publishing = _publishing(node)
    load_plugin(plugin, publishing.allowed())
    slot, point = publishing.slots.create(
        name,
        plugin,
        session=caller.pid,
        temporary=temporary,
        two_phase=two_phase,
        failover=failover,
    )
    return [{"slot_name": slot.name, "lsn": int(point.lsn)}]


def copy_slot(
    node: HasPublishing,
    caller: Caller,
    source: str,
    name: str,
    temporary: bool | None = None,
    plugin: str | None = None,
) -> list[Row]:
    """pg_copy_logical_replication_slot."""
    publishing = _publishing(node)
    if plugin is not None:
        load_plugin(plugin, publishing.allowed())
    slot = publishing.slots.copy(
        source, name, session=caller.pid, temporary=temporary, plugin=plugin
    )
    return [{"slot_name": slot.name, "lsn": int(slot.confirmed_lsn)}]


def drop_slot(node: HasPublishing, caller: Caller, name: str) -> None:
    """pg_drop_replication_slot."""
    _publishing(node).slots.drop(name, caller.pid, wait=None)


def advance_slot(node: HasPublishing, caller: Caller, name: str, lsn: int) -> list[Row]:
    """pg_replication_slot_advance."""
    reached = _publishing(node).slots.advance(name, caller.pid, Lsn(lsn))
    return [{"slot_name": name, "end_lsn": int(reached)}]


def current_lsn(node: HasPublishing, caller: Caller) -> int:
    """pg_current_wal_lsn."""
    return int(_publishing(node).capture.catch_up_for_long().lsn)


class Reader:
    """The four functions pg_logical_slot_{get,peek}[_binary]_changes."""

    def __init__(self, name: str) -> None:
        self._function = f"{name}(name,pg_lsn,integer,text[])"
        self._binary = "binary" in name
        self._consume = "get" in name

    def __call__(
        self,
        node: HasPublishing,
        caller: Caller,
        slot: str | None,
        up_to: int | None,
        at_most: int | None,
        options: Sequence[str],
    ) -> list[Row]:
        if slot is None:
            raise UsageError("slot name must not be null", sqlstate="22004")
        changes = read_changes(
            _publishing(node),
            slot,
            caller.pid,
            up_to=None if up_to is None else Lsn(up_to),
            at_most=at_most,
            options=_options(options),
            binary=self._binary,
            consume=self._consume,
            function=self._function,
            work_mem=caller.decoding_work_mem(),
            warn=lambda warning: _warn(caller, warning),
        )
        return [
            {
                "lsn": int(lsn),
                "xid": xid,
                "data": data if self._binary else data.decode(errors="replace"),
            }
            for lsn, xid, data in changes.rows
        ]


def _warn(caller: Caller, warning: Wal2LakeError) -> None:
    get_logger().warning(warning.message, error=warning)
    caller.notice(
        Notice(
            warning.message,
            severity="WARNING",
            sqlstate=warning.sqlstate,
            detail=warning.detail,
            hint=warning.hint,
            context=warning.context,
        )
    )


def _options(options: Sequence[str]) -> list[tuple[str, str | None]]:
    if any(item is None for item in options):
        raise FeatureNotSupportedError("array must not contain nulls")
    if len(options) % 2:
        raise FeatureNotSupportedError("array must have even number of elements")
    return list(zip(options[::2], options[1::2], strict=True))


def _publishing(node: HasPublishing) -> Publishing:
    if node.publishing is None:
        raise FeatureNotSupportedError("this node does not publish")
    return node.publishing
