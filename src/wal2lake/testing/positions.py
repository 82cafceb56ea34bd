"""Positions in a real server's WAL that a test waits for."""

from __future__ import annotations

END_OF_WAL = """\
select case
  when (l - '0/0') % current_setting('wal_block_size')::int = 24 then l - 24::numeric
  when (l - '0/0') % pg_size_bytes(current_setting('wal_segment_size')) = 40
    then l - 40::numeric
  else l end
from pg_current_wal_insert_lsn() l"""
"""The end of the last record that has been inserted, PostgreSQL 14 on.

At the end of a page pg_current_wal_insert_lsn() already points behind the header of the next page
(24 bytes, 40 in the first page of a segment: xlog_internal.h). Nothing has been written there yet:
a walsender, and so a subscriber, reaches that position only with the next record.
"""
