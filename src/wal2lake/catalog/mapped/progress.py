"""The fast-moving positions of one subscription, shared by mapped memory.

``run/sub-<oid>.progress`` is one page of native 64-bit words. Each word has exactly one writer and
is stored in one machine instruction, so a reader never sees half of a word. A reader may see words
of different moments; ``read`` re-establishes received >= logged >= applied. The file mirrors
durable facts: at its start the receiver rebuilds ``received`` and ``logged`` from the log, and the
engine ``applied`` from the catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.catalog.mapped.words import MappedWords
from wal2lake.model import Lsn, Oid

_SIZE: Final = 4096
_WORDS: Final = (
    "receiver_pid",
    "received",
    "logged",
    "applied",
    "sealed",
    "last_msg_send_time",
    "last_msg_receipt_time",
    "latest_end_lsn",
    "latest_end_time",
    "engine_pid",
    "replay_lsn",
)
_INDEX: Final = {name: i for i, name in enumerate(_WORDS)}


@dataclass(frozen=True, slots=True)
class Progress:
    """Positions at one moment. Times are microseconds since 2000-01-01 UTC; 0 means never."""

    receiver_pid: int
    """0 if no receiver runs."""
    received: Lsn
    """End of the data that the walsender has sent."""
    logged: Lsn
    """Position below which everything is durable in the change log."""
    applied: Lsn
    """Position below which everything is durable in every table."""
    sealed: Lsn
    """Position below which every transaction is in a sealed segment."""
    last_msg_send_time: int
    last_msg_receipt_time: int
    latest_end_lsn: Lsn
    """Last position reported upstream as flushed."""
    latest_end_time: int
    engine_pid: int
    """0 if no apply worker runs."""
    replay_lsn: Lsn
    """Last position reported upstream as applied. It is ahead of ``applied`` if everything sent
    since concerns no table."""


class ProgressFile:
    """The mapped file. Open it once per process; threads may share it."""

    def __init__(self, directory: Path, subid: Oid) -> None:
        """Map the file in ``directory`` (the node's ``run/``), and create it if it is missing."""
        path = progress_path(directory, subid)
        self._map = MappedWords.open_writer(path, _SIZE, "Q")
        self._words = self._map.words

    def set(self, **words: int) -> None:
        """Store words by name. Only the writer of a word calls this."""
        for name, value in words.items():
            self._words[_INDEX[name]] = int(value)

    def reset(self) -> None:
        """Set all words to 0, on disk, too, because positions of another slot do not limit those of
        this one. Called only while no worker runs."""
        self._map.clear()

    def word(self, name: str) -> int:
        """Return one word, for a loop that watches it."""
        return self._words[_INDEX[name]]

    def read(self) -> Progress:
        """Read all words, in the order applied, logged, received, so that received >= logged >=
        applied holds even if words change meanwhile."""
        return _progress(self.word)

    def close(self) -> None:
        """Unmap the file. The file stays."""
        self._map.close()

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_progress(directory: Path, subid: Oid) -> Progress | None:
    """Read the words once, without a change of the file. None if there is no such file."""
    try:
        mapped = MappedWords.open_reader(progress_path(directory, subid), _SIZE, "Q")
    except OSError:
        return None
    if mapped is None:
        return None
    with mapped:
        return _progress(lambda name: mapped.words[_INDEX[name]])


def _progress(word: Callable[[str], int]) -> Progress:
    """Read all words; the order of the first three matters, as ``ProgressFile.read`` says."""
    applied = word("applied")
    logged = max(word("logged"), applied)
    received = max(word("received"), logged)
    return Progress(
        receiver_pid=word("receiver_pid"),
        received=Lsn(received),
        logged=Lsn(logged),
        applied=Lsn(applied),
        sealed=Lsn(word("sealed")),
        last_msg_send_time=word("last_msg_send_time"),
        last_msg_receipt_time=word("last_msg_receipt_time"),
        latest_end_lsn=Lsn(word("latest_end_lsn")),
        latest_end_time=word("latest_end_time"),
        engine_pid=word("engine_pid"),
        replay_lsn=Lsn(word("replay_lsn")),
    )


def progress_path(directory: Path, subid: Oid) -> Path:
    """Return the path of a subscription's positions under ``run/``."""
    return directory / f"sub-{int(subid)}.progress"


def receiver_name(subid: Oid) -> str:
    """Return the name of a subscription's receiver among the processes with telemetry."""
    return f"receiver-{int(subid)}"
