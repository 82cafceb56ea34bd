"""Treatment of rows that the publisher deletes."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

DELETED_AT: Final = "_deleted_at"
"""Column of a table whose deleted rows stay: the commit time of the deletion; null in a row that
the publisher has."""


class DeleteMode(StrEnum):
    """Values of a subscription's option ``delete_mode``."""

    HARD = "hard"
    """A deleted row is removed, as in PostgreSQL."""
    SOFT = "soft"
    """A deleted row stays and is marked."""
