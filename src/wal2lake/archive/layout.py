"""Names of the objects below ``log.store``. Pure.

    claims/<generation>.json                  who is the node; put only if absent
    catalog/<generation>-<number>.tar.gz      the catalog and the files beside it
    log/<subid>/<log>/<generation>/seg-...    segments, named as on disk; the manifest comes last
    log/<subid>/<log>/<generation>/confirmed  the file ``confirmed``
    log/<subid>/<log>/<generation>/prepared-<segment>.json
                                              the transactions that are prepared from there on
    log/<subid>/<log>/<generation>/transaction-<lsn>-spool-...
                                              the files of one, by the end of its PREPARE
    staging/                                  changes of batches that a cluster's executors evaluate
    warm-up/                                  a table of the engine's start, removed at once

A subscription begins another log, with the next number, when it begins at another slot.

Numbers have 20 digits, so that names sort like numbers. Each generation writes only under its own
number: a machine that is taken for lost and goes on for a moment cannot replace what its successor
has written. Of two objects that say the same, the one of the higher generation counts.
"""

from __future__ import annotations

import re
from typing import Final

from wal2lake.errors import InternalError

CLAIMS: Final = "claims"
CATALOGS: Final = "catalog"
LOGS: Final = "log"
STAGING: Final = "staging"
CONFIRMED: Final = "confirmed"

_CLAIM: Final = re.compile(r"(\d{20})\.json\Z")
_CATALOG: Final = re.compile(r"(\d{20})-(\d{20})\.tar\.gz\Z")
_PREPARED: Final = re.compile(r"prepared-(\d{20})\.json\Z")
_TRANSACTION: Final = re.compile(r"transaction-\d{20}-(spool-.*)\Z")
_LOG: Final = re.compile(rf"{LOGS}/(\d+/\d+)/")


def claim_name(generation: int) -> str:
    """The name of a generation's claim."""
    return f"{generation:020d}.json"


def claimed(name: str) -> int | None:
    """Return the generation of a claim's name; None: it is no claim's."""
    match = _CLAIM.match(name)
    return int(match[1]) if match else None


def catalog_name(generation: int, number: int) -> str:
    """The name of a stored catalog."""
    return f"{generation:020d}-{number:020d}.tar.gz"


def catalog_of(name: str) -> tuple[int, int] | None:
    """Return generation and number of a stored catalog's name; None: it is none's."""
    match = _CATALOG.match(name)
    return (int(match[1]), int(match[2])) if match else None


def log_name(subid: int, number: int) -> str:
    """The name of a subscription's log: its OID, and the number of the log."""
    return f"{subid}/{number}"


def log_folder(log: str, generation: int) -> str:
    """The folder of a log's objects."""
    return f"{LOGS}/{log}/{generation:020d}"


def prepared_name(first: int) -> str:
    """The name of the record that says what is prepared from segment ``first`` on."""
    return f"prepared-{first:020d}.json"


def prepared_of(name: str) -> int | None:
    """Return the segment of such a record's name; None: it is none's."""
    match = _PREPARED.match(name)
    return int(match[1]) if match else None


def transaction_name(end: int, name: str) -> str:
    """The name of a prepared transaction's file; ``name`` is that on disk."""
    return f"transaction-{end:020d}-{name}"


def is_transaction(name: str) -> bool:
    """Return whether a name is that of a prepared transaction's file."""
    return _TRANSACTION.match(name) is not None


def transaction_file(key: str) -> str:
    """Return the name on disk of a prepared transaction's file."""
    match = _TRANSACTION.match(key.rpartition("/")[2])
    if match is None:
        raise InternalError(f'"{key}" is no file of a transaction')
    return match[1]


def log_of(key: str) -> str | None:
    """Return the name of the log that a key belongs to; None: to none."""
    match = _LOG.match(key)
    return match[1] if match else None
