"""Parses and prints statements about roles, privileges and owners.

Takes: a cursor behind the words that identify the command. Gives: frozen values, and their SQL
text. Owns: no state. Never: knows which roles exist.

    rolestatements  the values
    roles           CREATE, ALTER and DROP ROLE | USER | GROUP
    grants          GRANT and REVOKE, of roles and on objects; ALTER ... OWNER TO
    printing        values to text
"""

from wal2lake.sql.grammar.access.printing import access_to_sql
from wal2lake.sql.grammar.access.rolestatements import AccessStatement

__all__ = ["AccessStatement", "access_to_sql"]
