"""Options in parentheses, and the options of CREATE_ and ALTER_REPLICATION_SLOT.

In: options from the grammar. Out: values, or the error that a walsender raises, with checks in its
order.

Sources: src/backend/replication/walsender.c (parseCreateReplSlotOptions,
ParseAlterReplSlotOptions), commands/define.c, replication/slot.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import SqlSyntaxError, UsageError
from wal2lake.wire.replication.scanner import NAME_BYTES

_SLOT_NAME: Final = re.compile(r"[a-z0-9_]+\Z")


@dataclass(frozen=True, slots=True)
class Option:
    """An option; ``name`` is in lower case unless it was quoted."""

    name: str
    value: str | int | None = None

    def boolean(self) -> bool:
        """Read a Boolean, true if there is no value; raises SqlSyntaxError for other values."""
        if self.value is None:
            return True
        if isinstance(self.value, int):
            if self.value in (0, 1):
                return bool(self.value)
        elif (word := _lower(self.value)) in _BOOLEANS:
            return _BOOLEANS[word]
        raise SqlSyntaxError(f"{self.name} requires a Boolean value")

    def string(self) -> str:
        """Read a string; raises SqlSyntaxError if there is no value."""
        if self.value is None:
            raise SqlSyntaxError(f"{self.name} requires a parameter")
        return str(self.value)


_BOOLEANS: Final = {"true": True, "on": True, "false": False, "off": False}


def _lower(word: str) -> str:
    # str.lower would convert the Kelvin sign to a k.
    return word.lower() if word.isascii() else word


def conflicting() -> SqlSyntaxError:
    """Build the error for an option that is repeated or excluded by another."""
    return SqlSyntaxError("conflicting or redundant options")


class SnapshotAction(Enum):
    """Use of the snapshot at the slot's start by CREATE_REPLICATION_SLOT."""

    EXPORT = "export"
    """The answer has the snapshot's name; the snapshot is valid until the next command."""
    USE = "use"
    """The transaction that runs the command uses the snapshot."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """Options of CREATE_REPLICATION_SLOT."""

    snapshot: SnapshotAction = SnapshotAction.EXPORT
    two_phase: bool = False
    failover: bool = False
    reserve_wal: bool = False


def read_create_options(options: Iterable[Option], *, logical: bool) -> CreateOptions:
    """Read and check the options; raises UsageError."""
    snapshot, flags = None, dict[str, bool]()
    for option in options:
        name = option.name
        if name not in ("snapshot", "reserve_wal", "two_phase", "failover"):
            raise unrecognized("option", name)
        if logical == (name == "reserve_wal"):
            raise conflicting()
        if name in flags or (name == "snapshot" and snapshot is not None):
            raise conflicting()
        if name == "snapshot":
            snapshot = _snapshot(option)
        else:
            flags[name] = option.boolean()
    return CreateOptions(snapshot or SnapshotAction.EXPORT, **flags)


def _snapshot(option: Option) -> SnapshotAction:
    value = option.string()
    try:
        return SnapshotAction(value)
    except ValueError:
        raise UsageError(
            "unrecognized value for CREATE_REPLICATION_SLOT option"
            f' "{option.name}": "{value}"'
        ) from None


def read_alter_options(options: Iterable[Option]) -> tuple[bool | None, bool | None]:
    """Read failover and two_phase of ALTER_REPLICATION_SLOT; None: not given. Raises
    UsageError."""
    flags: dict[str, bool] = {}
    for option in options:
        if option.name not in ("failover", "two_phase"):
            raise unrecognized("option", option.name)
        if option.name in flags:
            raise conflicting()
        flags[option.name] = option.boolean()
    return flags.get("failover"), flags.get("two_phase")


def unrecognized(what: str, name: str) -> UsageError:
    """Build the error for an unknown option."""
    return UsageError(f"unrecognized {what}: {name}", sqlstate="XX000")


def validate_slot_name(name: str) -> None:
    """Raise UsageError if a slot cannot have this name. PostgreSQL checks it when it creates the
    slot, after the command's options."""
    if not name:
        raise UsageError(
            f'replication slot name "{name}" is too short', sqlstate="42602"
        )
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES:
        raise UsageError(
            f'replication slot name "{name}" is too long', sqlstate="42622"
        )
    if not _SLOT_NAME.match(name):
        raise UsageError(
            f'replication slot name "{name}" contains invalid character',
            sqlstate="42602",
            hint="Replication slot names may only contain lower case letters, numbers,"
            " and the underscore character.",
        )
