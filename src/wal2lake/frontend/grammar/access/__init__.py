"""Statements about roles, privileges and owners.

Takes: a cursor behind the words that tell the command. Gives: frozen values, and their text again.
Owns: no state. Never: knows which roles exist.

    statements   the values
    roles        CREATE, ALTER and DROP ROLE | USER | GROUP
    grants       GRANT and REVOKE, of roles and on objects; ALTER ... OWNER TO
    printing     the values' text
"""

from wal2lake.frontend.grammar.access.printing import access_to_sql
from wal2lake.frontend.grammar.access.statements import AccessStatement

__all__ = ["AccessStatement", "access_to_sql"]
