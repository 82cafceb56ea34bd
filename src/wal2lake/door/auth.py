"""Authenticates one connection.

Takes the user's name from the startup packet and the node's roles; returns a Role, or raises an
error that the client gets as FATAL. The texts are PostgreSQL's. An unknown user, a user without a
password, an expired password and a wrong password are indistinguishable to the client.

Source: src/backend/libpq/auth.c, auth-sasl.c; PostgreSQL manual, section 54.2.1 and 54.3.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import Enum

from wal2lake.catalog import Role
from wal2lake.door.client.conversation import ClientConversation
from wal2lake.errors import ProtocolViolation, UsageError
from wal2lake.login.passwords import has_expired
from wal2lake.wire.frontback import (
    AuthenticationData,
    AuthenticationRequest,
    AuthenticationSASL,
    read_frontend,
)
from wal2lake.wire.frontback.backend import AuthenticationKind
from wal2lake.wire.frontback.frames import Body
from wal2lake.wire.scram import (
    BOUND_MECHANISM,
    MECHANISM,
    NONCE_BYTES,
    ScramServer,
    mock_verifier,
    parse_verifier,
)

RoleSource = Callable[[str], Role | None]
"""Returns the role of that exact name; called from many threads."""


class AuthMethod(Enum):
    """The supported methods of pg_hba.conf."""

    SCRAM = "scram-sha-256"
    """A password, which the client proves without sending it."""
    TRUST = "trust"
    """The user's name is trusted."""


def authenticate(
    conversation: ClientConversation,
    user: str,
    roles: RoleSource,
    method: AuthMethod,
    mock_secret: bytes,
    end_point: bytes | None,
) -> Role:
    """Authenticate the client; the caller sends AuthenticationOk.

    ``end_point``: channel-binding data of an encrypted connection.

    Raises UsageError (28P01, 28000) or ProtocolViolation.
    """
    role = roles(user)
    if method is AuthMethod.TRUST:
        if role is None:
            raise UsageError(f'role "{user}" does not exist', sqlstate="28000")
        return role
    password = None if role is None or has_expired(role) else role.password
    proved = _proves(conversation, user, password, mock_secret, end_point)
    if role is None or not proved:
        raise UsageError(
            f'password authentication failed for user "{user}"', sqlstate="28P01"
        )
    return role


def _proves(
    conversation: ClientConversation,
    user: str,
    password: str | None,
    mock_secret: bytes,
    end_point: bytes | None,
) -> bool:
    verifier = parse_verifier(password) if password is not None else None
    mechanisms = (MECHANISM,) if end_point is None else (BOUND_MECHANISM, MECHANISM)
    conversation.send(AuthenticationSASL(mechanisms))
    mechanism, first = _read_initial_response(_receive(conversation))
    if mechanism not in mechanisms:
        raise ProtocolViolation(
            "client selected an invalid SASL authentication mechanism"
        )
    exchange = ScramServer(
        verifier or mock_verifier(user, mock_secret),
        secrets.token_bytes(NONCE_BYTES),
        doomed=verifier is None,
        end_point=end_point,
        bound=mechanism == BOUND_MECHANISM,
    )
    _ask(conversation, AuthenticationKind.SASL_CONTINUE, exchange.first(first))
    signature = exchange.final(_receive(conversation))
    if signature is None:
        return False
    _ask(conversation, AuthenticationKind.SASL_FINAL, signature)
    return True


def _ask(
    conversation: ClientConversation, kind: AuthenticationKind, data: bytes
) -> None:
    conversation.send(AuthenticationRequest(kind, data))


def _receive(conversation: ClientConversation) -> bytes:
    frame = conversation.next_frame()
    if frame.kind != b"p":
        raise ProtocolViolation(
            f"expected SASL response, got message type {frame.kind[0]}"
        )
    message = read_frontend(frame)
    assert isinstance(message, AuthenticationData)
    return message.data


def _read_initial_response(data: bytes) -> tuple[str, bytes]:
    """Read SASLInitialResponse: the mechanism's name, and its first message."""
    cursor = Body(data)
    mechanism = cursor.string().decode("utf-8", "replace")
    first = cursor.value()
    cursor.end()
    # A mechanism may begin with an empty challenge; SCRAM does not need one.
    if first is None:
        raise ProtocolViolation(
            "malformed SCRAM message", detail="The message is empty."
        )
    return mechanism, first
