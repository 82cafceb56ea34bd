"""Records of the store about prepared transactions, each from a segment on.

    transaction-<lsn>-...    the spool's files, put first
    prepared-<first>.json    first, last: segments; the transactions that are prepared at the end
                             of ``last``
    seg-...                  the segments from ``first`` to ``last``

A record is in the store before the manifest of its first segment. Its segments count together,
once the last one is there: at the end of an earlier one other transactions may have been prepared.
Behind ``last`` each segment counts by itself, with the same transactions, up to the next record. So
at any moment segments and transactions of the store belong together, without a change of two
objects at once.

A log without records has no prepared transactions. Pure but for reading the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wal2lake.changelog import manifest
from wal2lake.changelog.files import unsupported_version
from wal2lake.lake.store import Store
from wal2lake.model import Lsn

_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A prepared transaction in the store."""

    end_lsn: Lsn
    """End of its PREPARE."""
    keys: tuple[str, ...]
    """Names of its files; the checkpoint comes last."""


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """The transactions that are prepared at the end of a segment."""

    key: str
    """The object that has it."""
    first: int
    """The segments from this one to ``last`` count once they are all in the store."""
    last: int
    transactions: tuple[StoredTransaction, ...]

    @property
    def ends(self) -> frozenset[Lsn]:
        """Return the ends of all PREPAREs."""
        return frozenset(transaction.end_lsn for transaction in self.transactions)

    @property
    def keys(self) -> list[str]:
        """Return the files of all transactions."""
        return [key for transaction in self.transactions for key in transaction.keys]

    def encode(self) -> bytes:
        """Return the object's content."""
        return manifest.seal(
            {
                "format_version": _FORMAT_VERSION,
                "first": self.first,
                "last": self.last,
                "transactions": [
                    {
                        "end_lsn": str(transaction.end_lsn),
                        "files": list(transaction.keys),
                    }
                    for transaction in self.transactions
                ],
            }
        )

    @classmethod
    def read(cls, store: Store, key: str) -> PreparedRecord:
        """Read an object. Raises CorruptLogError, StorageError, ConfigurationError."""
        place = Path(f"{store.location}/{key}")
        members = manifest.unseal(store.read(key), place)
        version = members["format_version"]
        if version != _FORMAT_VERSION:
            raise unsupported_version(place, version, _FORMAT_VERSION)
        return cls(
            key,
            members["first"],
            members["last"],
            tuple(
                StoredTransaction(
                    Lsn.parse(transaction["end_lsn"]), tuple(transaction["files"])
                )
                for transaction in members["transactions"]
            ),
        )


def record_in_force(
    store: Store, records: Mapping[int, str], newest: int
) -> tuple[int, PreparedRecord | None]:
    """Return the number of the last segment that counts, and the record for its end; None: nothing
    is prepared there. ``records`` are keys by the first segment; ``newest`` is the newest segment
    in the store."""
    for first in sorted(records, reverse=True):
        if first > newest:
            continue
        record = PreparedRecord.read(store, records[first])
        if record.last <= newest:
            return newest, record
        newest = first - 1
    return newest, None
