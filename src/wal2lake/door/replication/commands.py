"""Executes replication commands.

Takes the text of a simple query that is a replication command; returns an Outcome, as any statement
does. START_REPLICATION has meanwhile talked to the client, through a walsender of its own.

Source: src/backend/replication/walsender.c (exec_replication_command); reference 4.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from wal2lake.door.client import (
    ClientConversation,
    SessionEnd,
    TransportClosed,
    is_wanted,
)
from wal2lake.door.session.transaction import SessionTransaction
from wal2lake.errors import (
    FeatureNotSupportedError,
    InternalError,
    SqlSyntaxError,
    UsageError,
)
from wal2lake.model import DATABASE
from wal2lake.pg import Check
from wal2lake.publish.plugins.loading import load_plugin
from wal2lake.publish.service import Publishing
from wal2lake.publish.walsender.starting import WalsenderTask
from wal2lake.sql.backend import Outcome, ResultBatch, TransactionKind
from wal2lake.sql.parameters import Parameters
from wal2lake.wire.frontback import CommandComplete, FieldDescription
from wal2lake.wire.replication import (
    AlterReplicationSlot,
    BaseBackup,
    Command,
    CreateReplicationSlot,
    DropReplicationSlot,
    IdentifySystem,
    Option,
    ReadReplicationSlot,
    Show,
    SnapshotAction,
    StartLogical,
    StartPhysical,
    TimelineHistory,
    UploadManifest,
    read_command,
)

_TEXT: Final = 25
_INT8: Final = 20

_WAIT_SECONDS: Final = 0.05


class ReplicationCommands:
    """Executes the replication commands of one session."""

    def __init__(
        self,
        publishing: Publishing,
        conversation: ClientConversation,
        parameters: Parameters,
        pid: int,
        use_versions: Callable[[Mapping[str, int]], None],
        fresh_check: Callable[[], Check],
    ) -> None:
        """Prepare for one session.

        ``use_versions`` makes the session's transaction read these versions of tables, by location.
        ``fresh_check`` returns the function that ends a command's waits by raising."""
        self._publishing = publishing
        self._conversation = conversation
        self._parameters = parameters
        self._pid = pid
        self._use_versions = use_versions
        self._fresh_check = fresh_check
        self._check: Check = lambda: None

    def run(self, text: str, transaction: SessionTransaction) -> Outcome:
        """Run one command; ``transaction`` is the session's."""
        command = read_command(text)
        transaction.check_usable()
        # Most replication clients will stream.
        self._publishing.walsenders.prepare()
        self._check = self._fresh_check()
        if isinstance(command, StartPhysical | StartLogical) and transaction.in_block:
            raise UsageError(
                "START_REPLICATION cannot run inside a transaction block",
                sqlstate="25001",
            )
        return self._run(command, transaction)

    def next_query(self) -> None:
        """Withdraw the snapshot that the previous command has exported."""
        self._publishing.withdraw(self._pid)

    def close(self) -> None:
        """Withdraw the exported snapshot at the end of the session."""
        self._publishing.withdraw(self._pid)

    def _run(self, command: Command, transaction: SessionTransaction) -> Outcome:
        slots = self._publishing.slots
        if isinstance(command, IdentifySystem):
            return self._identify()
        if isinstance(command, Show):
            shown = self._parameters.definition(command.name).name
            return _answer("SHOW", [(shown, _TEXT)], [self._parameters[command.name]])
        if isinstance(command, ReadReplicationSlot):
            return self._read(command)
        if isinstance(command, CreateReplicationSlot):
            return self._create(command, transaction)
        if isinstance(command, AlterReplicationSlot):
            slots.alter(
                command.slot,
                self._pid,
                failover=command.failover,
                two_phase=command.two_phase,
            )
            return Outcome("ALTER_REPLICATION_SLOT")
        if isinstance(command, DropReplicationSlot):
            slots.drop(
                command.slot, self._pid, wait=self._wait if command.wait else None
            )
            return Outcome("DROP_REPLICATION_SLOT")
        if isinstance(command, StartLogical):
            return self._start(command)
        if isinstance(command, StartPhysical):
            raise FeatureNotSupportedError("physical replication is not supported")
        if isinstance(command, TimelineHistory):
            raise UsageError(
                f'could not open file "pg_wal/{command.timeline:08X}.history":'
                " No such file or directory",
                sqlstate="58P01",
            )
        if isinstance(command, BaseBackup | UploadManifest):
            raise FeatureNotSupportedError("base backups are not supported")
        raise SqlSyntaxError("syntax error")

    def _wait(self) -> None:
        self._check()
        if self._conversation.transport.has_hung_up():
            raise TransportClosed("the client has gone")
        time.sleep(_WAIT_SECONDS)

    def _identify(self) -> Outcome:
        publishing = self._publishing
        # A client that connects does not wait for a running capture.
        end = publishing.capture.end() or publishing.capture.catch_up_for_long().lsn
        return _answer(
            "IDENTIFY_SYSTEM",
            [
                ("systemid", _TEXT),
                ("timeline", _INT8),
                ("xlogpos", _TEXT),
                ("dbname", _TEXT),
            ],
            [str(publishing.system_identifier), "1", str(end), DATABASE],
        )

    def _read(self, command: ReadReplicationSlot) -> Outcome:
        for slot in self._publishing.slots.all():
            if slot.name == command.slot:
                raise FeatureNotSupportedError(
                    "cannot use READ_REPLICATION_SLOT with a logical replication slot"
                )
        return _answer(
            "READ_REPLICATION_SLOT",
            [("slot_type", _TEXT), ("restart_lsn", _TEXT), ("restart_tli", _INT8)],
            [None, None, None],
        )

    def _create(
        self, command: CreateReplicationSlot, transaction: SessionTransaction
    ) -> Outcome:
        if command.plugin is None:
            raise FeatureNotSupportedError(
                "physical replication slots are not supported"
            )
        snapshot = command.options.snapshot
        self._check_snapshot(snapshot, transaction)
        load_plugin(command.plugin, self._publishing.allowed())
        slot, point = self._publishing.slots.create(
            command.slot,
            command.plugin,
            session=self._pid,
            temporary=command.temporary,
            two_phase=command.options.two_phase,
            failover=command.options.failover,
        )
        name = None
        if snapshot is SnapshotAction.EXPORT:
            name = self._publishing.export(point, self._pid)
        elif snapshot is SnapshotAction.USE:
            transaction.enter(TransactionKind.BLOCK)
            self._use_versions(self._publishing.locations(point))
        return _answer(
            "CREATE_REPLICATION_SLOT",
            [
                ("slot_name", _TEXT),
                ("consistent_point", _TEXT),
                ("snapshot_name", _TEXT),
                ("output_plugin", _TEXT),
            ],
            [slot.name, str(slot.confirmed_lsn), name, slot.plugin],
        )

    def _check_snapshot(
        self, snapshot: SnapshotAction, transaction: SessionTransaction
    ) -> None:
        if snapshot is SnapshotAction.EXPORT and transaction.in_block:
            raise InternalError(
                "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'export') must not be called inside"
                " a transaction"
            )
        if snapshot is not SnapshotAction.USE:
            return
        prefix = "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'use') must be called"
        if not transaction.in_block:
            raise InternalError(f"{prefix} inside a transaction")
        if self._parameters["transaction_isolation"] != "repeatable read":
            raise InternalError(
                f"{prefix} in REPEATABLE READ isolation mode transaction"
            )
        if self._parameters["transaction_read_only"] != "on":
            raise InternalError(f"{prefix} in a read-only transaction")
        if transaction.has_queried:
            raise InternalError(f"{prefix} before any query")
        if transaction.in_savepoint:
            raise InternalError(
                "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'use') must not be called in a"
                " subtransaction"
            )

    def _start(self, command: StartLogical) -> Outcome:
        publishing, conversation = self._publishing, self._conversation
        with publishing.slots.using(command.slot, self._pid) as slot:
            options = _options(command.options)
            conversation.transport.flush()
            outcome = publishing.walsenders.stream(
                self._pid,
                conversation.transport.fileno(),
                WalsenderTask(
                    slot=slot.name,
                    plugin=slot.plugin,
                    start=max(int(command.start), int(slot.confirmed_lsn)),
                    options=options,
                    allowed=publishing.allowed(),
                    catalog=publishing.catalog_path,
                    warehouse=publishing.warehouse,
                    log=publishing.log_directory,
                    page=publishing.walsenders.page_of(self._pid),
                    timeout_ms=self._parameters.number("wal_sender_timeout"),
                    work_mem=1024
                    * self._parameters.number("logical_decoding_work_mem"),
                    warns=is_wanted(
                        "WARNING", self._parameters.raw("client_min_messages")
                    ),
                    codec=conversation.codec(),
                ),
            )
        publishing.slots.released()
        conversation.feed(outcome.left)
        if outcome.error is not None:
            raise SessionEnd(outcome.error) if outcome.fatal else outcome.error
        if not outcome.done:
            raise TransportClosed("end of replication stream")
        conversation.send(CommandComplete("COPY 0"))
        return Outcome("START_REPLICATION")


def _options(options: Sequence[Option]) -> tuple[tuple[str, str | None], ...]:
    return tuple(
        (option.name, None if option.value is None else str(option.value))
        for option in options
    )


def _answer(
    tag: str, fields: Sequence[tuple[str, int]], row: Sequence[str | None]
) -> Outcome:
    columns = tuple([None if v is None else v.encode()] for v in row)
    described = tuple(FieldDescription(name, oid) for name, oid in fields)
    return Outcome(tag, described, iter((ResultBatch(1, columns),)))
