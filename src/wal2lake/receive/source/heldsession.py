"""One session to the publisher for several looks in a row.

In: a function that opens a session. Out: the session, to those who look at the publisher's catalog
for the same group of changes. The journal's thread makes two looks at each group with a Relation
message, and the group waits for them. A session of each look's own would double that wait.

Used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal2lake.pg import Session


class HeldSession:
    """Opens a session at the first look, and closes it when the looks are over."""

    def __init__(self, opened: Callable[[], Session]) -> None:
        """``opened`` opens a session. Raises PublisherError."""
        self._opened = opened
        self._is_held = False
        self._session: Session | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Share one session among all looks of the context."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._close()

    @contextmanager
    def __call__(self) -> Iterator[Session]:
        """Yield the session for one look. After an error the next look opens another one. Raises
        PublisherError."""
        if self._session is None:
            self._session = self._opened()
        try:
            yield self._session
        except BaseException:
            self._close()
            raise
        if not self._is_held:
            self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
