"""Errors of expressions of tables, in PostgreSQL's words for the clause that has them.

CHECK constraints and generated columns are typed like row filters (``publication.filters``), whose
errors name WHERE.

Source: check_agglevels_and_constraints(), transformWindowFuncCall() in parse_agg.c;
check_srf_call_placement() in parse_func.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError

_IN_A_FILTER: Final = " in a publication WHERE expression is not supported"
_NOT_ALLOWED: Final = " functions are not allowed in WHERE"


@contextmanager
def named_for(place: str, clause: str) -> Iterator[None]:
    """Rename the place in errors of row filters.

    ``place``: PostgreSQL's name for such expressions. An expression that PostgreSQL accepts and
    this node does not compute is 0A000 with the ``clause``."""
    try:
        yield
    except UsageError as error:
        if error.message.endswith(_NOT_ALLOWED):
            error.message = error.message.removesuffix("WHERE") + place
            raise
        if (
            not isinstance(error, FeatureNotSupportedError)
            or "cannot use" in error.message
        ):
            raise
        construct = error.message.removesuffix(_IN_A_FILTER)
        reason = f"Not supported: {construct}. " if construct != error.message else ""
        raise FeatureNotSupportedError(
            f"{clause} is not supported on lake tables",
            detail=f"{reason}{error.detail or error.message}",
        ) from None
