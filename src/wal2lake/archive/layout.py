"""Names of the objects below ``log.store``. Pure.

    claims/<generation>.json                  who is the node; put only if absent
    catalog/<generation>-<number>.tar.gz      the catalog and the files beside it
    log/<subid>/<log>/<generation>/seg-...    segments, named as on disk; the manifest comes last
    log/<subid>/<log>/<generation>/confirmed  the file ``confirmed``
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

CLAIMS: Final = "claims"
CATALOGS: Final = "catalog"
LOGS: Final = "log"
STAGING: Final = "staging"
CONFIRMED: Final = "confirmed"

_CLAIM: Final = re.compile(r"(\d{20})\.json\Z")
_CATALOG: Final = re.compile(r"(\d{20})-(\d{20})\.tar\.gz\Z")
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


def log_of(key: str) -> str | None:
    """Return the name of the log that a key belongs to; None: to none."""
    match = _LOG.match(key)
    return match[1] if match else None
