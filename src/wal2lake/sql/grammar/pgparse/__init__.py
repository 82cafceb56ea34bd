"""Parses query strings by PostgreSQL's own grammar.

Takes: a query string. Gives: its statements with their places (``parse_string``), or PostgreSQL's
error. Owns: a few threads that call the library. Never: reads names or types, and never hands the
library a text that it could not survive.

    strings     a string to its statements; start here
    depth       the bound on the depth of a tree
    library     the call of libpg_query
    messages    protobuf's wire format
    failures    errors with SQLSTATE and hint
"""

from wal2lake.sql.grammar.pgparse.strings import is_own, parse_string

__all__ = ["is_own", "parse_string"]
