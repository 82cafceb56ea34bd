"""A role's password, checked against the verifier that the catalog has.

The front door proves a password by SCRAM, without seeing it. HTTP's basic authentication sends it,
over TLS; the verifier is made again of it and compared, which takes as long as SCRAM's iterations.

Called by: the front door (``has_expired``), the web process. Source: PostgreSQL's crypt.c.
"""

from __future__ import annotations

from datetime import UTC, datetime

from wal2lake.catalog import Role
from wal2lake.wire.scram import mock_verifier, parse_verifier


def has_expired(role: Role) -> bool:
    """True if the password has expired; VALID UNTIL does not limit the role itself."""
    if role.valid_until in (None, "infinity"):
        return False
    if role.valid_until == "-infinity":
        return True
    return datetime.fromisoformat(str(role.valid_until)) < datetime.now(UTC)


def is_password(role: Role | None, password: str) -> bool:
    """True if the role exists and has this password, which has not expired.

    Takes as long for a role that does not exist, or has no password, as for a wrong password.
    """
    stored = None if role is None or has_expired(role) else role.password
    verifier = None if stored is None else parse_verifier(stored)
    if verifier is None:
        mock_verifier("", b"").matches(password)
        return False
    return verifier.matches(password)
