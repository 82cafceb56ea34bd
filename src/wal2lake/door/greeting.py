"""The first messages of a connection, up to a session that may begin.

Takes a new connection and facts about the node. Returns a Greeting (role, parameters), or None
after a CancelRequest or if the client does not speak PostgreSQL's protocol. The order is
PostgreSQL's: encryption, protocol version, the node's state, authentication, the database, the
parameters.

    client                                  node
    SSLRequest | GSSENCRequest      ->
                                    <-      S, and a TLS handshake | N
    StartupMessage                  ->
                                    <-      [NegotiateProtocolVersion]
                                    <-      [AuthenticationSASL ... exchange]
                                    <-      AuthenticationOk

Errors here are FATAL; the caller sends them. A packet that is no startup packet gets no answer,
because its sender does not speak the protocol.

Source: src/backend/tcop/backend_startup.c (ProcessStartupPacket),
src/backend/utils/init/postinit.c; PostgreSQL manual, section 54.2.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wal2lake.catalog import Role
from wal2lake.door.auth import AuthMethod, RoleSource, authenticate
from wal2lake.door.client.conversation import ClientConversation
from wal2lake.door.encryption import (
    ALPN,
    HANDSHAKE_BYTE,
    Encrypted,
    Encryption,
    describe,
)
from wal2lake.door.hba import AccessRules, ClientCertificate, Peer, Rule
from wal2lake.errors import (
    FeatureNotSupportedError,
    ProtocolViolation,
    SqlSyntaxError,
    UsageError,
)
from wal2lake.sql.parameters import (
    ParameterDefinition,
    Parameters,
    codec_name,
    parse_boolean,
)
from wal2lake.wire.frontback import (
    AuthenticationRequest,
    CancelRequest,
    GSSENCRequest,
    NegotiateProtocolVersion,
    SSLRequest,
    StartupMessage,
)
from wal2lake.wire.frontback.backend import AuthenticationKind

PROTOCOL_MAJOR: Final = 3
PROTOCOL_MINOR: Final = 0
"""The only difference of 3.2 would be longer cancel keys."""

_NOT_PARAMETERS: Final = frozenset({"user", "database", "options", "replication"})


@dataclass(frozen=True, slots=True)
class Door:
    """Facts about the node that a connection needs to be admitted."""

    database: str
    """The name of the only database."""
    roles: RoleSource
    mock_secret: bytes = field(repr=False)
    """Kept across restarts; otherwise the salts of unknown users would change with each."""
    node_parameters: Callable[[], Sequence[ParameterDefinition]] = tuple
    """Returns the node's present settings, for SHOW."""
    may_connect: Callable[[Role], bool] = lambda role: True
    """Returns whether a role has CONNECT on the database."""
    is_member: Callable[[str, str], bool] = lambda user, role: False
    """Returns whether the user (first name) is a member of the role (second name)."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """An admitted client."""

    role: Role
    parameters: Parameters
    replication: bool
    """True if the client has requested ``replication=database``."""
    encrypted: Encrypted | None


class OldProtocol(Exception):
    """Raised for a client from before 2003, which expects another form of errors."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class StartupRequest:
    """A StartupMessage, and whether it came encrypted."""

    message: StartupMessage
    encrypted: Encrypted | None


def read_startup_message(
    conversation: ClientConversation,
    cancel: Callable[[int, bytes], None],
    tls: Encryption | None,
) -> StartupRequest | None:
    """Read up to the StartupMessage; None after a CancelRequest, which has been handled.

    Raises ProtocolViolation for anything else, which must not be answered.
    """
    requests: set[type] = set()
    encrypted = None if tls is None else _direct_tls(conversation, tls)
    while True:
        packet = conversation.next_packet()
        if isinstance(packet, StartupMessage):
            return StartupRequest(packet, encrypted)
        if isinstance(packet, CancelRequest):
            cancel(packet.pid, packet.secret)
            return None
        assert isinstance(packet, SSLRequest | GSSENCRequest)
        if type(packet) in requests or encrypted is not None:
            raise ProtocolViolation("encryption was requested twice")
        requests.add(type(packet))
        if tls is None or isinstance(packet, GSSENCRequest):
            conversation.send_raw(b"N")
            continue
        conversation.send_raw(b"S")
        if conversation.buffered:
            # The bytes came unencrypted and must not be taken for encrypted ones.
            raise ProtocolViolation(
                "received unencrypted data after SSL request",
                detail="This could be either a client-software bug or evidence of an"
                " attempted man-in-the-middle attack.",
            )
        encrypted = describe(conversation.transport.secure(tls.context), tls)


def _direct_tls(conversation: ClientConversation, tls: Encryption) -> Encrypted | None:
    """Do a handshake that begins with the first byte (PostgreSQL 17's sslnegotiation=direct)."""
    received = conversation.receive_first()
    if received[0] != HANDSHAKE_BYTE:
        conversation.feed(received)
        return None
    session = conversation.transport.secure(tls.context, received)
    if session.selected_alpn_protocol() != ALPN:
        raise ProtocolViolation(
            "received direct SSL connection request without ALPN protocol negotiation"
            " extension"
        )
    return describe(session, tls)


def negotiate(conversation: ClientConversation, startup: StartupMessage) -> None:
    """Agree on the protocol version; raises OldProtocol, or UsageError for newer ones."""
    if startup.major != PROTOCOL_MAJOR:
        error = FeatureNotSupportedError(
            f"unsupported frontend protocol {startup.major}.{startup.minor}: server "
            f"supports {PROTOCOL_MAJOR}.0 to {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
        )
        raise OldProtocol(error) if startup.major < PROTOCOL_MAJOR else error
    unknown = startup.protocol_options
    if startup.minor > PROTOCOL_MINOR or unknown:
        conversation.send(
            NegotiateProtocolVersion(PROTOCOL_MAJOR, PROTOCOL_MINOR, unknown)
        )


def admit(
    conversation: ClientConversation,
    request: StartupRequest,
    door: Door,
    rules: AccessRules,
) -> Greeting:
    """Authenticate and set up the session; AuthenticationOk is sent. Errors are FATAL."""
    options = {_decode(n): _decode(v) for n, v in request.message.parameters.items()}
    user = options.get("user", "")
    if not user:
        raise UsageError(
            "no PostgreSQL user name specified in startup packet", sqlstate="28000"
        )
    database = options.get("database") or user
    replication = _replication(options.get("replication"))
    transport = conversation.transport
    client = Peer(
        transport.host,
        transport.local_host,
        request.encrypted is not None,
        database,
        user,
    )
    rule = rules.find(client, door.is_member)
    if rule is None or rule.method is None:
        raise _turned_away(client, rejected=rule is not None)
    _check_certificate(rule, request.encrypted, user)
    role = authenticate(
        conversation,
        user,
        door.roles,
        rule.method,
        door.mock_secret,
        None if request.encrypted is None else request.encrypted.end_point,
    )
    conversation.send(AuthenticationRequest(AuthenticationKind.OK))
    if not role.login:
        raise UsageError(
            f'role "{role.name}" is not permitted to log in', sqlstate="28000"
        )
    if replication and not (role.replication or role.superuser):
        raise UsageError(
            "permission denied to start WAL sender",
            sqlstate="42501",
            detail="Only roles with the REPLICATION attribute may start a WAL sender"
            " process.",
        )
    if database != door.database:
        raise UsageError(f'database "{database}" does not exist', sqlstate="3D000")
    if not door.may_connect(role):
        raise UsageError(
            f'permission denied for database "{database}"',
            sqlstate="42501",
            detail="User does not have CONNECT privilege.",
        )
    parameters = _parameters(role, options, door.node_parameters)
    conversation.codec = lambda: codec_name(parameters.raw("client_encoding"))
    return Greeting(role, parameters, replication, request.encrypted)


def _turned_away(client: Peer, *, rejected: bool) -> UsageError:
    encryption = "SSL encryption" if client.encrypted else "no encryption"
    reason = (
        "pg_hba.conf rejects connection for" if rejected else "no pg_hba.conf entry for"
    )
    return UsageError(
        f'{reason} host "{client.host}", user "{client.user}", database'
        f' "{client.database}", {encryption}',
        sqlstate="28000",
    )


def _check_certificate(rule: Rule, encrypted: Encrypted | None, user: str) -> None:
    if rule.certificate is ClientCertificate.NONE:
        return
    if encrypted is None or not encrypted.certified:
        raise UsageError(
            "connection requires a valid client certificate", sqlstate="28000"
        )
    if (
        rule.certificate is ClientCertificate.VERIFY_FULL
        and encrypted.common_name != user
    ):
        # The error of the rule's next method, as in auth_failed().
        if rule.method is AuthMethod.SCRAM:
            raise UsageError(
                f'password authentication failed for user "{user}"', sqlstate="28P01"
            )
        method = "certificate" if rule.method_name == "cert" else '"trust"'
        raise UsageError(
            f'{method} authentication failed for user "{user}"', sqlstate="28000"
        )


def _decode(data: bytes) -> str:
    # PostgreSQL compares names by their bytes. Here a name that is not UTF-8 matches nothing.
    return data.decode("utf-8", "replace")


def _replication(value: str | None) -> bool:
    """Return whether to start a walsender, for ``database``; physical replication is refused."""
    if value is None:
        return False
    if value == "database":
        return True
    enabled = parse_boolean(value)
    if enabled is None:
        raise UsageError(
            f'invalid value for parameter "replication": "{value}"',
            hint='Valid values are: "false", 0, "true", 1, "database".',
        )
    if enabled:
        raise FeatureNotSupportedError(
            "physical replication connections are not supported",
            hint="Connect with replication=database.",
        )
    return False


def _parameters(
    role: Role,
    options: Mapping[str, str],
    node: Callable[[], Sequence[ParameterDefinition]],
) -> Parameters:
    facts = {
        "is_superuser": "on" if role.superuser else "off",
        "session_authorization": role.name,
    }
    parameters = Parameters(facts=facts, node=node)
    # The command line comes first: a parameter of the packet itself wins, as in
    # process_startup_options.
    for name, value in command_line_settings(options.get("options", "")):
        parameters.set_at_startup(name, value)
    for name, value in options.items():
        if name not in _NOT_PARAMETERS and not name.startswith("_pq_."):
            parameters.set_at_startup(name, value)
    return parameters


_OPTION: Final = re.compile(r"(?:\\.|[^\\\s])+", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def command_line_settings(options: str) -> list[tuple[str, str]]:
    """Parse ``-c name=value``, ``-cname=value``, ``--name=value``; raises SqlSyntaxError.

    A backslash escapes white space (pg_split_opts); hyphens in a name of the long form
    are underscores.
    """
    words = [_ESCAPED.sub(r"\1", word) for word in _OPTION.findall(options)]
    settings: list[tuple[str, str]] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "-c" and position < len(words):
            text, flag = words[position], "-c "
            position += 1
        elif word.startswith("-c") and len(word) > 2:
            text, flag = word[2:], "-c "
        elif word.startswith("--") and len(word) > 2:
            text, flag = word[2:], "--"
        else:
            raise SqlSyntaxError(
                f"invalid command-line argument for server process: {word}",
                hint='Only "-c name=value" and "--name=value" are accepted.',
            )
        name, equals, value = text.partition("=")
        if not equals:
            raise SqlSyntaxError(f"{flag}{text} requires a value")
        # ParseLongOption: a hyphen is an underscore, in both forms.
        settings.append((name.replace("-", "_"), value))
    return settings
