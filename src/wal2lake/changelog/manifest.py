"""The manifest of one sealed segment, as a value and as bytes.

A segment exists from the moment at which its manifest has its final name. The text is JSON, for
people and tools. Its last member is the CRC-32 of every byte before that member, so that any
flipped bit is found without a canonical form. LSNs are text in PostgreSQL's notation, because many
JSON readers round large numbers. docs/formats/segments.md describes each member.

Written by ``segments``, read by ``reader`` and ``retention``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from wal2lake.changelog.files import unsupported_version
from wal2lake.errors import RESTORE_HINT, CorruptLogError
from wal2lake.model import INVALID_LSN, Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.settings import PUBLISHER_LOG

FORMAT_VERSION: Final = 3

_WITHOUT_MESSAGES: Final = 1
"""The format version before messages files; read as if it had none."""
_WITHOUT_STREAMED: Final = 2
"""The format version before files of streamed transactions."""

_END = re.compile(rb'"sealed_lsn": "([0-9A-F]{1,8}/[0-9A-F]{1,8})"')
_TRAILER = re.compile(rb',\n "crc32": "([0-9a-f]{8})"\n}\n\Z')


@dataclass(frozen=True, slots=True)
class LogFile:
    """One Parquet file of a segment."""

    name: str
    size: int
    """Bytes."""
    crc32: int
    """Checksum of all the file's bytes."""


@dataclass(frozen=True, slots=True)
class RowsFile:
    """Rows of one relation version, in the order (commit_lsn, ordinal)."""

    file: LogFile
    relation: Relation
    type_names: Mapping[Oid, str]
    """Names from the publisher of types that are not built in, by OID."""
    inserts: int
    updates: int
    deletes: int
    truncates: int
    min_commit_lsn: Lsn
    max_commit_lsn: Lsn
    has_unchanged: bool
    """At least one value is unchanged TOAST: there are ``u`` columns."""
    has_old_rows: bool
    """At least one row has its old row or key: there are ``o`` columns."""
    has_key_change: bool
    """At least one UPDATE may have changed the key: it has an old key, or (REPLICA IDENTITY
    FULL) an old row to compare with."""
    streamed: bool = False
    """The file was written before its transaction committed: it has the column xid in place of
    commit_lsn, which is ``min_commit_lsn`` for all rows."""
    rolled_back: tuple[int, ...] = ()
    """Subtransactions whose rows in the file do not count and are not in the counts above."""
    constants: tuple[str | None, ...] = ()
    """Values, as the publisher's text, of all rows in the last columns of ``relation``, which their
    transaction added later. In memory only: no file and no manifest has them."""

    @property
    def commit_lsn(self) -> Lsn | None:
        """Commit LSN of all rows of a streamed file; None: the file's column has it."""
        return self.min_commit_lsn if self.streamed else None

    @property
    def rows(self) -> int:
        """Number of all rows, including truncations."""
        return self.inserts + self.updates + self.deletes + self.truncates

    @property
    def has_truncate(self) -> bool:
        """True if at least one row is a TRUNCATE."""
        return self.truncates > 0


@dataclass(frozen=True, slots=True)
class MessagesFile:
    """Logical messages, in the order of the stream."""

    file: LogFile
    messages: int
    content_bytes: int
    """Bytes of all contents together."""
    max_commit_lsn: Lsn
    """Highest commit LSN of their transactions; 0: all are outside of transactions."""


class Step(StrEnum):
    """Step of a prepared transaction that a transaction in the log stands for."""

    PREPARE = "prepare"
    COMMIT = "commit prepared"
    """The transaction repeats the rows, for subscribers that were not sent the PREPARE."""
    ROLLBACK = "rollback prepared"


@dataclass(frozen=True, slots=True)
class TwoPhase:
    """A prepared transaction, with the facts from its PREPARE."""

    gid: str
    xid: int
    prepare_lsn: Lsn
    prepare_end: Lsn
    prepare_time: int
    """Microseconds since 2000-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class HandedOn:
    """A prepared transaction of one of our publishers whose PREPARE is in the log."""

    subid: int
    """OID of the subscription that receives it. The next two are facts of its publisher."""
    xid: int
    prepare_lsn: Lsn

    two_phase: TwoPhase | None
    """The transaction as it is prepared here. None: it was rolled back here, and its rows follow
    with its COMMIT PREPARED."""
    tables: tuple[int, ...] = ()
    """OIDs of the tables that it changes."""
    relations: tuple[int, ...] = ()
    """Checksum of each relation as it was published, ascending."""
    changes: int = 0
    """Number of changes that were published."""

    @property
    def key(self) -> tuple[int, int, Lsn]:
        """Identity of the transaction: subscription, xid, LSN of its PREPARE."""
        return self.subid, self.xid, self.prepare_lsn


@dataclass(frozen=True, slots=True)
class CaptureState:
    """The commits of tables that a publisher's log has."""

    versions: Mapping[int, int]
    """Version of each table, by relation OID, up to which its commits are in the log."""
    last_xid: int
    prepared: Mapping[int, TwoPhase] = field(default_factory=dict)
    """Prepared transactions that have not ended, by the catalog's numbers."""
    steps: Mapping[Lsn, tuple[Step, TwoPhase]] = field(default_factory=dict)
    """Steps of this segment by commit LSN; steps of earlier segments may be included."""
    handed_on: tuple[HandedOn, ...] = ()
    """Transactions that subscriptions have prepared, that are in the log, and that have not ended
    at their publisher."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One sealed segment: whole transactions, in commit order, and the messages between
    them."""

    number: int
    """From 1, without gaps."""
    first_commit_lsn: Lsn
    """0 (like ``last_commit_lsn``) if there are no transactions."""
    last_commit_lsn: Lsn
    sealed_lsn: Lsn
    """End LSN of the last transaction, or LSN of a later message outside of transactions. All
    transactions and messages below are in this segment or an earlier one."""
    last_commit_time: int
    """Commit time of the last transaction at the publisher, in microseconds since 2000-01-01
    UTC; 0 if there are no transactions."""
    transactions: int
    """Number of transactions, including those without changes."""
    transactions_file: LogFile
    files: tuple[RowsFile, ...]
    messages_files: tuple[MessagesFile, ...] = ()
    captured: CaptureState | None = None
    """None in the log of a subscription."""

    @property
    def log_files(self) -> tuple[LogFile, ...]:
        """All Parquet files of the segment."""
        return (
            self.transactions_file,
            *(f.file for f in self.files),
            *(f.file for f in self.messages_files),
        )

    @property
    def size(self) -> int:
        """Bytes of the segment's Parquet files."""
        return sum(file.size for file in self.log_files)


def encode(manifest: Manifest) -> bytes:
    """Encode the manifest's file."""
    members: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "number": manifest.number,
        "first_commit_lsn": str(manifest.first_commit_lsn),
        "last_commit_lsn": str(manifest.last_commit_lsn),
        "sealed_lsn": str(manifest.sealed_lsn),
        "last_commit_time": manifest.last_commit_time,
        "transactions": manifest.transactions,
        "transactions_file": _encode_file(manifest.transactions_file),
        "files": [encode_rows_file(file) for file in manifest.files],
        "messages_files": [
            encode_messages_file(file) for file in manifest.messages_files
        ],
    }
    if manifest.captured is not None:
        members["captured"] = {
            "versions": {str(k): v for k, v in manifest.captured.versions.items()},
            "last_xid": manifest.captured.last_xid,
            "prepared": {
                str(number): _encode_two_phase(two_phase)
                for number, two_phase in manifest.captured.prepared.items()
            },
            "steps": {
                str(lsn): {"step": step.value, **_encode_two_phase(two_phase)}
                for lsn, (step, two_phase) in manifest.captured.steps.items()
            },
            "handed_on": [
                _encode_handed_on(transaction)
                for transaction in manifest.captured.handed_on
            ],
        }
    return seal(members)


def seal(members: dict[str, Any]) -> bytes:
    """Encode a file of these members and their checksum."""
    text = json.dumps(members, ensure_ascii=False, indent=1)
    body = text.removesuffix("\n}").encode("utf-8", "surrogatepass")
    return body + f',\n "crc32": "{zlib.crc32(body):08x}"\n}}\n'.encode()


def unseal(content: bytes, path: Path) -> dict[str, Any]:
    """Decode the members of a file; raises CorruptLogError."""
    trailer = _TRAILER.search(content)
    if trailer is None:
        raise corrupt(path, "It has no checksum at its end.")
    body = content[: trailer.start()]
    if zlib.crc32(body) != int(trailer[1], 16):
        raise corrupt(path, "It fails its checksum.")
    members: dict[str, Any] = json.loads(content.decode("utf-8", "surrogatepass"))
    return members


def decode(content: bytes, path: Path) -> Manifest:
    """Decode a manifest's file; ``path`` is for messages.

    Raises CorruptLogError, or ConfigurationError for another format version.
    """
    members = unseal(content, path)
    version = members.get("format_version")
    if version not in (_WITHOUT_MESSAGES, _WITHOUT_STREAMED, FORMAT_VERSION):
        raise unsupported_version(path, version, FORMAT_VERSION)
    return Manifest(
        number=members["number"],
        first_commit_lsn=Lsn.parse(members["first_commit_lsn"]),
        last_commit_lsn=Lsn.parse(members["last_commit_lsn"]),
        sealed_lsn=Lsn.parse(members["sealed_lsn"]),
        last_commit_time=members["last_commit_time"],
        transactions=members["transactions"],
        transactions_file=_decode_file(members["transactions_file"]),
        files=tuple(decode_rows_file(m) for m in members["files"]),
        messages_files=tuple(
            decode_messages_file(m)
            for m in (members["messages_files"] if version > _WITHOUT_MESSAGES else ())
        ),
        captured=_decode_captured(members.get("captured")),
    )


def end_of_damaged(content: bytes) -> Lsn:
    """Return ``sealed_lsn`` from the text of a damaged manifest; 0: the text has none."""
    match = _END.search(content)
    return Lsn.parse(match[1].decode()) if match else INVALID_LSN


def _decode_captured(members: Mapping[str, Any] | None) -> CaptureState | None:
    if members is None:
        return None
    versions = {int(k): int(v) for k, v in members["versions"].items()}
    return CaptureState(
        versions,
        int(members["last_xid"]),
        {int(k): _decode_two_phase(v) for k, v in members.get("prepared", {}).items()},
        {
            Lsn.parse(k): (Step(v["step"]), _decode_two_phase(v))
            for k, v in members.get("steps", {}).items()
        },
        tuple(_decode_handed_on(item) for item in members.get("handed_on", ())),
    )


def _encode_handed_on(transaction: HandedOn) -> dict[str, Any]:
    return {
        "subid": transaction.subid,
        "xid": transaction.xid,
        "prepare_lsn": str(transaction.prepare_lsn),
        "two_phase": None
        if transaction.two_phase is None
        else _encode_two_phase(transaction.two_phase),
        "tables": list(transaction.tables),
        "relations": list(transaction.relations),
        "changes": transaction.changes,
    }


def _decode_handed_on(members: Mapping[str, Any]) -> HandedOn:
    two_phase = members["two_phase"]
    return HandedOn(
        members["subid"],
        members["xid"],
        Lsn.parse(members["prepare_lsn"]),
        None if two_phase is None else _decode_two_phase(two_phase),
        tuple(members["tables"]),
        tuple(members["relations"]),
        members["changes"],
    )


def _encode_two_phase(two_phase: TwoPhase) -> dict[str, Any]:
    return {
        "gid": two_phase.gid,
        "xid": two_phase.xid,
        "prepare_lsn": str(two_phase.prepare_lsn),
        "prepare_end": str(two_phase.prepare_end),
        "prepare_time": two_phase.prepare_time,
    }


def _decode_two_phase(members: Mapping[str, Any]) -> TwoPhase:
    return TwoPhase(
        members["gid"],
        members["xid"],
        Lsn.parse(members["prepare_lsn"]),
        Lsn.parse(members["prepare_end"]),
        members["prepare_time"],
    )


def _encode_file(file: LogFile) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "crc32": f"{file.crc32:08x}"}


def _decode_file(members: dict[str, Any]) -> LogFile:
    return LogFile(members["name"], members["size"], int(members["crc32"], 16))


def encode_rows_file(rows: RowsFile) -> dict[str, Any]:
    """Encode a rows file as JSON members."""
    return {
        **_encode_file(rows.file),
        "relation": encode_relation(rows.relation),
        "type_names": {str(int(oid)): name for oid, name in rows.type_names.items()},
        "inserts": rows.inserts,
        "updates": rows.updates,
        "deletes": rows.deletes,
        "truncates": rows.truncates,
        "min_commit_lsn": str(rows.min_commit_lsn),
        "max_commit_lsn": str(rows.max_commit_lsn),
        "has_unchanged": rows.has_unchanged,
        "has_old_rows": rows.has_old_rows,
        "has_key_change": rows.has_key_change,
        "has_truncate": rows.has_truncate,
        "streamed": rows.streamed,
        "rolled_back": list(rows.rolled_back),
    }


def decode_rows_file(members: dict[str, Any]) -> RowsFile:
    """Decode the members from ``encode_rows_file``."""
    return RowsFile(
        file=_decode_file(members),
        relation=_decode_relation(members["relation"]),
        type_names={Oid(oid): name for oid, name in members["type_names"].items()},
        inserts=members["inserts"],
        updates=members["updates"],
        deletes=members["deletes"],
        truncates=members["truncates"],
        min_commit_lsn=Lsn.parse(members["min_commit_lsn"]),
        max_commit_lsn=Lsn.parse(members["max_commit_lsn"]),
        has_unchanged=members["has_unchanged"],
        has_old_rows=members["has_old_rows"],
        has_key_change=members["has_key_change"],
        streamed=members.get("streamed", False),
        rolled_back=tuple(members.get("rolled_back", ())),
    )


def encode_messages_file(messages: MessagesFile) -> dict[str, Any]:
    """Encode a messages file as JSON members."""
    return {
        **_encode_file(messages.file),
        "messages": messages.messages,
        "content_bytes": messages.content_bytes,
        "max_commit_lsn": str(messages.max_commit_lsn),
    }


def decode_messages_file(members: dict[str, Any]) -> MessagesFile:
    """Decode the members from ``encode_messages_file``."""
    return MessagesFile(
        file=_decode_file(members),
        messages=members["messages"],
        content_bytes=members["content_bytes"],
        max_commit_lsn=Lsn.parse(members["max_commit_lsn"]),
    )


def encode_relation(relation: Relation) -> dict[str, Any]:
    """Encode a relation version as JSON members."""
    return {
        "relid": int(relation.relid),
        "namespace": relation.namespace,
        "name": relation.name,
        "identity": relation.identity.value,
        "columns": [
            {
                "name": column.name,
                "type_oid": int(column.type_oid),
                "typmod": column.typmod,
                "is_key": column.is_key,
            }
            for column in relation.columns
        ],
    }


def _decode_relation(members: dict[str, Any]) -> Relation:
    return Relation(
        relid=Oid(members["relid"]),
        namespace=members["namespace"],
        name=members["name"],
        identity=ReplicaIdentity(members["identity"]),
        columns=tuple(
            Column(c["name"], Oid(c["type_oid"]), c["typmod"], c["is_key"])
            for c in members["columns"]
        ),
    )


_PUBLISHERS_HINT: Final = (
    "Restore the file from a backup, or drop the replication slots that have not confirmed the"
    " segment's changes (all slots, if the file is the newest segment's manifest); their"
    " subscribers then copy the tables anew."
)


def corrupt(path: Path, detail: str, original: str | None = None) -> CorruptLogError:
    """Build the error for a file of a segment that differs from what was written."""
    return CorruptLogError(
        f'change log file "{path}" is corrupted',
        detail=detail,
        hint=_PUBLISHERS_HINT if path.parent.name == PUBLISHER_LOG else RESTORE_HINT,
        original=original,
    )
