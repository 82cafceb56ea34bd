"""The first messages of a connection, up to a session that may begin.

In: a new connection and what the node allows. Out: a Greeting (who, with which parameters),
or None when the connection has served its purpose (a CancelRequest) or was no PostgreSQL
client. In PostgreSQL's order: encryption, version agreed on, the node's state, who
it is, the database, the parameters.

    client                                  node
    SSLRequest | GSSENCRequest      ->
                                    <-      S, and a TLS handshake | N
    StartupMessage                  ->
                                    <-      [NegotiateProtocolVersion]
                                    <-      [AuthenticationSASL ... exchange]
                                    <-      AuthenticationOk

Errors here are FATAL; the caller sends them. A packet that is no startup packet gets no answer,
for whoever sent it does not speak the protocol.

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
"""3.2 would bring longer cancel keys only."""

_NOT_PARAMETERS: Final = frozenset({"user", "database", "options", "replication"})


@dataclass(frozen=True, slots=True)
class Door:
    """Facts about the node that a connection needs to be admitted."""

    database: str
    """The one database there is."""
    roles: RoleSource
    mock_secret: bytes = field(repr=False)
    """Kept across restarts, or the salts of unknown users would change with each."""
    node_parameters: Callable[[], Sequence[ParameterDefinition]] = tuple
    """The node's own settings as they are now, for SHOW."""
    may_connect: Callable[[Role], bool] = lambda role: True
    """Whether a role has CONNECT on the database."""
    is_member: Callable[[str, str], bool] = lambda user, role: False
    """Whether the user of the first name is a member of the role of the second."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """A client that was let in."""

    role: Role
    parameters: Parameters
    replication: bool
    """It asked for ``replication=database``."""
    encrypted: Encrypted | None


class OldProtocol(Exception):
    """A client of before 2003; its errors have another shape."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Knock:
    """A StartupMessage, and how it came."""

    message: StartupMessage
    encrypted: Encrypted | None


def read_startup_message(
    conversation: ClientConversation,
    cancel: Callable[[int, bytes], None],
    tls: Encryption | None,
) -> Knock | None:
    """Up to the StartupMessage; None: it was a CancelRequest, now done.

    Raises ProtocolViolation for what is no startup packet: answer nothing.
    """
    asked: set[type] = set()
    encrypted = None if tls is None else _direct_tls(conversation, tls)
    while True:
        packet = conversation.next_packet()
        if isinstance(packet, StartupMessage):
            return Knock(packet, encrypted)
        if isinstance(packet, CancelRequest):
            cancel(packet.pid, packet.secret)
            return None
        assert isinstance(packet, SSLRequest | GSSENCRequest)
        if type(packet) in asked or encrypted is not None:
            raise ProtocolViolation("encryption was requested twice")
        asked.add(type(packet))
        if tls is None or isinstance(packet, GSSENCRequest):
            conversation.send_raw(b"N")
            continue
        conversation.send_raw(b"S")
        if conversation.buffered:
            # It was not encrypted, and must not be taken for what comes encrypted.
            raise ProtocolViolation(
                "received unencrypted data after SSL request",
                detail="This could be either a client-software bug or evidence of an"
                " attempted man-in-the-middle attack.",
            )
        encrypted = describe(conversation.transport.secure(tls.context), tls)


def _direct_tls(conversation: ClientConversation, tls: Encryption) -> Encrypted | None:
    """A handshake as the very first bytes (PostgreSQL 17's sslnegotiation=direct)."""
    received = conversation.receive_first()
    if received[0] != HANDSHAKE_BYTE:
        conversation.feed(received)
        return None
    found = conversation.transport.secure(tls.context, received)
    if found.selected_alpn_protocol() != ALPN:
        raise ProtocolViolation(
            "received direct SSL connection request without ALPN protocol negotiation"
            " extension"
        )
    return describe(found, tls)


def negotiate(conversation: ClientConversation, startup: StartupMessage) -> None:
    """Agree on the protocol version; raises OldProtocol, or UsageError for others."""
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
    conversation: ClientConversation, knock: Knock, door: Door, rules: AccessRules
) -> Greeting:
    """Authenticate and set up; AuthenticationOk is sent. Errors are to be FATAL."""
    given = {_decode(n): _decode(v) for n, v in knock.message.parameters.items()}
    user = given.get("user", "")
    if not user:
        raise UsageError(
            "no PostgreSQL user name specified in startup packet", sqlstate="28000"
        )
    database = given.get("database") or user
    replication = _replication(given.get("replication"))
    transport = conversation.transport
    client = Peer(
        transport.host,
        transport.local_host,
        knock.encrypted is not None,
        database,
        user,
    )
    rule = rules.find(client, door.is_member)
    if rule is None or rule.method is None:
        raise _turned_away(client, rejected=rule is not None)
    _check_certificate(rule, knock.encrypted, user)
    role = authenticate(
        conversation,
        user,
        door.roles,
        rule.method,
        door.mock_secret,
        None if knock.encrypted is None else knock.encrypted.end_point,
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
    parameters = _parameters(role, given, door.node_parameters)
    conversation.codec = lambda: codec_name(parameters.raw("client_encoding"))
    return Greeting(role, parameters, replication, knock.encrypted)


def _turned_away(client: Peer, *, rejected: bool) -> UsageError:
    encryption = "SSL encryption" if client.encrypted else "no encryption"
    what = (
        "pg_hba.conf rejects connection for" if rejected else "no pg_hba.conf entry for"
    )
    return UsageError(
        f'{what} host "{client.host}", user "{client.user}", database'
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
        # auth_failed(): by the method that would have been next.
        if rule.method is AuthMethod.SCRAM:
            raise UsageError(
                f'password authentication failed for user "{user}"', sqlstate="28P01"
            )
        what = "certificate" if rule.method_name == "cert" else '"trust"'
        raise UsageError(
            f'{what} authentication failed for user "{user}"', sqlstate="28000"
        )


def _decode(data: bytes) -> str:
    # Names compare by their bytes in PostgreSQL; here what is not UTF-8 matches no name.
    return data.decode("utf-8", "replace")


def _replication(value: str | None) -> bool:
    """``database`` starts a walsender; a physical one is none of ours."""
    if value is None:
        return False
    if value == "database":
        return True
    wanted = parse_boolean(value)
    if wanted is None:
        raise UsageError(
            f'invalid value for parameter "replication": "{value}"',
            hint='Valid values are: "false", 0, "true", 1, "database".',
        )
    if wanted:
        raise FeatureNotSupportedError(
            "physical replication connections are not supported",
            hint="Connect with replication=database.",
        )
    return False


def _parameters(
    role: Role,
    given: Mapping[str, str],
    node: Callable[[], Sequence[ParameterDefinition]],
) -> Parameters:
    facts = {
        "is_superuser": "on" if role.superuser else "off",
        "session_authorization": role.name,
    }
    parameters = Parameters(facts=facts, node=node)
    # The command line first: a setting of its own name in the packet wins, as in
    # process_startup_options.
    for name, value in command_line_settings(given.get("options", "")):
        parameters.set_at_startup(name, value)
    for name, value in given.items():
        if name not in _NOT_PARAMETERS and not name.startswith("_pq_."):
            parameters.set_at_startup(name, value)
    return parameters


_OPTION: Final = re.compile(r"(?:\\.|[^\\\s])+", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def command_line_settings(options: str) -> list[tuple[str, str]]:
    """``-c name=value``, ``-cname=value``, ``--name=value``; raises SqlSyntaxError.

    A backslash escapes white space (pg_split_opts); hyphens in a name of the long form
    are underscores.
    """
    words = [_ESCAPED.sub(r"\1", word) for word in _OPTION.findall(options)]
    settings: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "-c" and at < len(words):
            text, flag = words[at], "-c "
            at += 1
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
