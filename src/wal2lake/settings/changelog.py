"""The section [log]: the change log between the publisher and the tables.

In: nothing. Out: ``LogSettings``, as ``sections`` describes its sections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wal2lake.settings.declaration import setting

_INT_MAX: Final = 2**31 - 1

_BYTES_MAX: Final = 2**62

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The durable change log between the publisher and the tables."""

    directory: str = setting(
        "",
        "Directory of the change log, as a path or file: URL; empty: log/ in the node's"
        " directory.",
        restart=True,
    )
    store: str = setting(
        "",
        "Where sealed segments and the catalog are put, too: a URL like s3://bucket/node-log, or"
        " a directory that outlives this machine. The former has passwords: let nobody else read"
        " it. Executors of a cluster read the log there if it is a URL. Empty: nowhere, or, with"
        " confirm = store or a cluster, the warehouse's URL with -log at its end.",
        restart=True,
    )
    confirm: str = setting(
        "disk",
        "What makes a position confirmed to the publisher. disk: the log on this machine's disk"
        " has it. store: its segment and the catalog are in the store, so that this machine may"
        " be lost.",
        choices=("disk", "store"),
        restart=True,
    )
    journal_file_bytes: int = setting(
        64 * _MIB,
        "The journal starts a new file at this size.",
        minimum=_MIB,
        maximum=_INT_MAX,
    )
    segment_bytes: int = setting(
        32 * _MIB,
        "A segment is sealed when it has received this much.",
        minimum=64 * 1024,
        maximum=_INT_MAX,
    )
    segment_interval_ms: int = setting(
        250,
        "A segment that holds a commit is sealed after this time at the latest. While apply is"
        " behind, the time is a quarter of what the segment before took to be applied, at most a"
        " second. While the publisher sends what has been waiting, the segment lasts until"
        " everything has come, at most two seconds.",
        minimum=1,
        maximum=_INT_MAX,
    )
    size_limit_bytes: int = setting(
        0,
        "When a subscription's log has this size, receiving stops and the publisher keeps"
        " the WAL instead. Open and prepared transactions do not count. 0: no limit but the"
        " disk.",
        minimum=0,
        maximum=_BYTES_MAX,
    )
    size_warning_percent: int = setting(
        80,
        "A warning is logged when a log reaches this part of size_limit_bytes.",
        minimum=1,
        maximum=100,
    )
    history_bytes: int = setting(
        256 * _MIB,
        "Sealed segments that all tables have applied, with their logical messages, are kept"
        " up to this size.",
        minimum=0,
        maximum=_BYTES_MAX,
    )
    messages: bool = setting(
        True,
        "Request logical messages (pg_logical_emit_message) from publishers and keep them. A"
        " change takes effect at a receiver's next start.",
    )
    messages_view_bytes: int = setting(
        64 * _MIB,
        "Largest total size of a subscription's logical messages that wal2lake.messages"
        " shows; above it a query is an error.",
        minimum=0,
        maximum=_INT_MAX,
        receivers=False,
    )
