"""A test once waited two minutes for a position 24 bytes behind all that its source had written.

The last record had ended with its page, and pg_current_wal_insert_lsn() is behind the next page's
header then."""

from __future__ import annotations

from tests.conftest import Database

from wal2lake.model import Lsn
from wal2lake.testing.positions import END_OF_WAL

PAGE, HEADER = 8192, 24


def test_the_end_of_a_page_is_no_position_to_wait_for(pg18: Database) -> None:
    for _ in range(50):
        at = Lsn.parse(pg18.psql("select pg_current_wal_insert_lsn()"))
        if at % PAGE == HEADER:
            break
        # A message's record takes 54 bytes beside its text, and is aligned to 8; it goes to the
        # end of this page or of the next one.
        room = PAGE - at % PAGE
        size = room - 56 if room > 512 else room + PAGE - HEADER - 56
        pg18.psql(f"select pg_logical_emit_message(false, '', repeat('x', {size}))")
    assert at % PAGE == HEADER
    flushed = Lsn.parse(pg18.psql("select pg_current_wal_flush_lsn()"))
    assert flushed <= at - HEADER
    assert Lsn.parse(pg18.psql(END_OF_WAL)) == at - HEADER
