"""The bytes of ``spool-<n>.json``: the whole state of a spool except its rows.

The file is JSON with a checksum at its end, like a segment's manifest. A spool with a checkpoint
outlives the process; files of a spool without one are left from a crash. docs/formats/spool.md
describes each member.

``spools`` writes the file, and reads it when the log is opened; ``prepared`` reads it, too.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, Final

from wal2lake.changelog import files, manifest
from wal2lake.changelog.journal.journal import JournalPlace
from wal2lake.changelog.spool.spool import Piece, PreparedFacts, Spool
from wal2lake.model import Lsn, Xid
from wal2lake.wire.columnar import OpenStream, StreamedDefinition, caches

FORMAT_VERSION: Final = 1


def encode(spool: Spool, covered: JournalPlace) -> bytes:
    """Encode the checkpoint of a spool whose rows are all in durable pieces."""
    stream, prepared = spool.stream, spool.prepared
    return manifest.seal(
        {
            "format_version": FORMAT_VERSION,
            "number": spool.number,
            "xid": int(stream.xid),
            "prepared": None
            if prepared is None
            else {
                "gid": prepared.gid,
                "prepare_lsn": str(prepared.prepare_lsn),
                "end_lsn": str(prepared.end_lsn),
                "prepare_time": prepared.prepare_time,
            },
            "origin": stream.origin,
            "next_ordinal": stream.next_ordinal,
            "latest": list(stream.latest),
            "raw_bytes": spool.raw_bytes,
            "rolled_back": sorted(spool.rolled_back),
            "covered": {"journal": covered.number, "offset": covered.offset},
            "definitions": [
                {
                    "message": b64encode(definition.message).decode(),
                    "sent": definition.sent,
                    "xids": sorted(definition.xids),
                }
                for versions in stream.definitions.values()
                for definition in versions
            ],
            "files": [
                {
                    **manifest.encode_rows_file(piece.rows),
                    "first_xid": piece.first_xid,
                    "last_xid": piece.last_xid,
                }
                for piece in spool.pieces
            ],
            "messages_files": [
                manifest.encode_messages_file(piece) for piece in spool.message_pieces
            ],
        }
    )


def load(path: Path) -> Spool:
    """Read a checkpoint; raises CorruptLogError, StorageError, ConfigurationError, and
    FileNotFoundError if there is none (any more)."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise files.storage_error("read file", path, error) from error
    members = manifest.unseal(content, path)
    version = members.get("format_version")
    if version != FORMAT_VERSION:
        raise files.unsupported_version(path, version, FORMAT_VERSION)
    prepared = members["prepared"]
    pieces = [
        Piece(manifest.decode_rows_file(m), m["first_xid"], m["last_xid"])
        for m in members["files"]
    ]
    covered = members["covered"]
    return Spool(
        directory=path.parent,
        number=members["number"],
        stream=_stream(members),
        prepared=None
        if prepared is None
        else PreparedFacts(
            prepared["gid"],
            Lsn.parse(prepared["prepare_lsn"]),
            Lsn.parse(prepared["end_lsn"]),
            prepared["prepare_time"],
        ),
        rolled_back=set(members["rolled_back"]),
        pieces=pieces,
        message_pieces=[
            manifest.decode_messages_file(m) for m in members["messages_files"]
        ],
        covered=JournalPlace(covered["journal"], covered["offset"]),
        # Checkpoints of older versions do not have it.
        raw_bytes=members.get("raw_bytes"),
        _next_k=len(pieces),
    )


def _stream(members: dict[str, Any]) -> OpenStream:
    definitions: dict[Any, tuple[StreamedDefinition, ...]] = {}
    for m in members["definitions"]:
        definition = StreamedDefinition(
            b64decode(m["message"]), m["sent"], frozenset(m["xids"])
        )
        definitions[definition.described] = (
            *definitions.get(definition.described, ()),
            definition,
        )
    return OpenStream(
        xid=Xid(members["xid"]),
        origin=members["origin"],
        next_ordinal=members["next_ordinal"],
        latest=tuple(members.get("latest", ())),
        definitions=definitions,
        state=caches(definitions),
    )
