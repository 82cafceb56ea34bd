"""Questions to a publisher about what its publications contain now.

Takes: a session, names of publications. Gives: a fingerprint that is cheap to ask for, and the
state of each published table. Owns: nothing. Never: decides what follows from a difference.

    states    the fingerprint and the states
"""

from wal2lake.pg.publications.states import (
    PublishedState,
    publication_fingerprint,
    published_states,
    relations_that_exist,
)

__all__ = [
    "PublishedState",
    "publication_fingerprint",
    "published_states",
    "relations_that_exist",
]
"""Public names of this folder."""
