"""SCRAM-SHA-256, the server's side: the password is neither known, sent nor stored.

In: the client's two messages and a verifier. Out: the server's two messages and the result.

    client                                     server
    n,,n=,r=<nonce>                 ->         INITIAL
                                    <-         r=<nonce><more>,s=<salt>,i=<iterations>
    c=biws,r=<nonce><more>,p=<proof> ->        CHALLENGED
                                    <-         v=<signature>    DONE   (or a failure)

For an unknown user the exchange is the same, with a salt made of the user's name and a secret of
the node ("mock authentication"), and fails at the end, so that clients cannot find out names. The
user's name in the SCRAM message is ignored, as in PostgreSQL: the startup packet has it.

Channel binding (SCRAM-SHA-256-PLUS) proves that client and server use the same TLS connection: the
client's proof covers the certificate that the client got. The binding type is always
tls-server-end-point, as in PostgreSQL.

Source: RFC 5802, RFC 7677, RFC 5803 (verifier), RFC 5929; src/backend/libpq/auth-scram.c.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import (
    FeatureNotSupportedError,
    ProtocolViolation,
    UsageError,
    Wal2LakeError,
)
from wal2lake.wire.saslprep import saslprep

MECHANISM: Final = "SCRAM-SHA-256"

BOUND_MECHANISM: Final = "SCRAM-SHA-256-PLUS"
"""The mechanism with channel binding, offered on TLS connections."""

_BINDING_TYPE: Final = b"tls-server-end-point"

DEFAULT_ITERATIONS: Final = 4096
"""PostgreSQL's scram_iterations, RFC 7677's minimum."""

SALT_BYTES: Final = 16
"""SCRAM_DEFAULT_SALT_LEN."""

NONCE_BYTES: Final = 18
"""SCRAM_RAW_NONCE_LEN: 24 characters of base64."""

_KEY_BYTES: Final = 32

_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$(\d{1,10}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)
_PRINTABLE = re.compile(rb"[\x21-\x2b\x2d-\x7e]+")
"""RFC 5802 "printable": ASCII without space and comma."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """The verifier that the catalog stores instead of a password; ``str()`` is RFC 5803's form."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        return (
            f"{MECHANISM}${self.iterations}:{_b64(self.salt)}"
            f"${_b64(self.stored_key)}:{_b64(self.server_key)}"
        )

    def __repr__(self) -> str:
        # Not for logs: a verifier allows an offline guessing attack.
        return f"Verifier(iterations={self.iterations})"

    def matches(self, password: str | bytes) -> bool:
        """Return whether the verifier was made from this password, prepared as by libpq."""
        made = create_verifier(password, self.salt, iterations=self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


def create_verifier(
    password: str | bytes, salt: bytes, *, iterations: int = DEFAULT_ITERATIONS
) -> Verifier:
    """Make a verifier; the caller supplies the random salt (SALT_BYTES)."""
    raw = password.encode("utf-8") if isinstance(password, str) else password
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(raw), salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    stored_key = hashlib.sha256(client_key).digest()
    return Verifier(iterations, salt, stored_key, _hmac(salted, b"Server Key"))


def parse_verifier(text: str) -> Verifier | None:
    """Read ``SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>``; None: not valid."""
    match = _VERIFIER.fullmatch(text)
    if match is None:
        return None
    try:
        salt, stored, server = (
            base64.b64decode(part, validate=True) for part in match.groups()[1:]
        )
    except binascii.Error:
        return None
    iterations = int(match[1])
    if len(stored) != _KEY_BYTES or len(server) != _KEY_BYTES or iterations < 1:
        return None
    return Verifier(iterations, salt, stored, server)


def mock_verifier(user: str, secret: bytes) -> Verifier:
    """Make a verifier that no password matches; equal user and secret give the same salt."""
    salt = hashlib.sha256(user.encode("utf-8") + secret).digest()[:SALT_BYTES]
    return Verifier(DEFAULT_ITERATIONS, salt, bytes(_KEY_BYTES), bytes(_KEY_BYTES))


class ScramState(Enum):
    """State of the exchange."""

    INITIAL = "initial"
    """The client's first message has not arrived."""
    CHALLENGED = "challenged"
    """Salt and nonce have been sent."""
    DONE = "done"
    """The client has proved that it knows the password, and gets our signature."""
    FAILED = "failed"
    """The proof was wrong, or the exchange was aborted."""


class ScramServer:
    """One exchange. Pure: the caller supplies the nonce, so that tests can use a fixed one."""

    __slots__ = (
        "_auth_message",
        "_binding",
        "_bound",
        "_doomed",
        "_nonce",
        "_verifier",
        "_wanted",
        "state",
    )

    def __init__(
        self,
        verifier: Verifier,
        nonce: bytes,
        *,
        doomed: bool,
        end_point: bytes | None = None,
        bound: bool = False,
    ) -> None:
        """``nonce`` has NONCE_BYTES random bytes. ``doomed``: fail even with a correct proof.
        ``end_point`` is RFC 5929's hash of the server's certificate, if BOUND_MECHANISM was
        offered; ``bound``: the client chose it."""
        self._verifier = verifier
        self._doomed = doomed
        self._binding = end_point
        self._bound = bound
        self._nonce = base64.b64encode(nonce)
        self._wanted = b""
        self._auth_message = b""
        self.state = ScramState.INITIAL

    def first(self, message: bytes) -> bytes:
        """client-first-message → server-first-message; raises ProtocolViolation."""
        self._enter(ScramState.INITIAL)
        header, bare = self._split_gs2(message)
        attributes = bare.split(b",")
        if attributes[0][:2] == b"m=":
            raise FeatureNotSupportedError(
                "client requires an unsupported SCRAM extension"
            )
        if len(attributes) < 2 or attributes[0][:2] != b"n=":
            raise _malformed('Expected attribute "n" in the client\'s first message.')
        client_nonce = _attribute(attributes[1], b"r")
        if not _PRINTABLE.fullmatch(client_nonce):
            raise _malformed("The nonce has characters that are not printable.")
        self._wanted = header + ((self._binding or b"") if self._bound else b"")
        self._nonce = client_nonce + self._nonce
        challenge = b"r=%s,s=%s,i=%d" % (
            self._nonce,
            base64.b64encode(self._verifier.salt),
            self._verifier.iterations,
        )
        self._auth_message = bare + b"," + challenge
        self.state = ScramState.CHALLENGED
        return challenge

    def final(self, message: bytes) -> bytes | None:
        """client-final-message → server-final-message, or None if the proof is wrong.

        Raises ProtocolViolation for a malformed message.
        """
        self._enter(ScramState.CHALLENGED)
        without_proof, separator, proof_text = message.rpartition(b",p=")
        if not separator:
            raise _malformed("The client's final message has no proof.")
        attributes = without_proof.split(b",")
        if len(attributes) < 2:
            raise _malformed('Expected attribute "r" in the client\'s final message.')
        if _unb64(_attribute(attributes[0], b"c")) != self._wanted:
            if self._bound:
                raise UsageError("SCRAM channel binding check failed", sqlstate="28000")
            raise ProtocolViolation(
                "unexpected SCRAM channel-binding attribute in client-final-message"
            )
        if not hmac.compare_digest(_attribute(attributes[1], b"r"), self._nonce):
            raise ProtocolViolation(
                "invalid SCRAM response", detail="Nonce does not match."
            )
        proof = _unb64(proof_text)
        if len(proof) != _KEY_BYTES:
            raise _malformed("The proof has the wrong length.")
        auth_message = self._auth_message + b"," + without_proof
        # The proof is always checked, so that the answer to an unknown user takes as long.
        proved = self._proves(proof, auth_message)
        if self._doomed or not proved:
            return None
        self.state = ScramState.DONE
        signature = _hmac(self._verifier.server_key, auth_message)
        return b"v=" + base64.b64encode(signature)

    def _proves(self, proof: bytes, auth_message: bytes) -> bool:
        signature = _hmac(self._verifier.stored_key, auth_message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.sha256(client_key).digest()
        return hmac.compare_digest(stored_key, self._verifier.stored_key)

    def _split_gs2(self, message: bytes) -> tuple[bytes, bytes]:
        """Return the GS2 header (with its commas) and client-first-message-bare."""
        flag, _, rest = message.partition(b",")
        self._check_flag(flag)
        authzid, comma, bare = rest.partition(b",")
        if authzid:
            if authzid.startswith(b"a="):
                raise FeatureNotSupportedError(
                    "client uses authorization identity, but it is not supported"
                )
            raise _malformed("Unexpected attribute in the client's first message.")
        if not comma:
            raise _malformed("The client's first message is too short.")
        return flag + b",,", bare

    def _check_flag(self, flag: bytes) -> None:
        """Check that the client's channel-binding flag fits the mechanism and the offer."""
        if flag.startswith(b"p="):
            if not self._bound:
                raise _malformed(
                    "The client selected SCRAM-SHA-256 without channel binding, but the "
                    "SCRAM message includes channel binding data."
                )
            if flag != b"p=" + _BINDING_TYPE:
                kind = flag[2:].decode("ascii", "replace")
                raise ProtocolViolation(
                    f'unsupported SCRAM channel-binding type "{kind}"'
                )
            return
        if flag not in (b"n", b"y"):
            raise _malformed("Unexpected channel-binding flag.")
        if self._bound:
            raise _malformed(
                "The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not "
                "include channel binding data."
            )
        if flag == b"y" and self._binding is not None:
            # An attacker between client and server has removed the offer.
            raise UsageError(
                "SCRAM channel binding negotiation error",
                sqlstate="28000",
                detail="The client supports SCRAM channel binding but thinks the server "
                "does not.  However, this server does support channel binding.",
            )

    def _enter(self, expected: ScramState) -> None:
        previous = self.state
        # FAILED until the step succeeds: an aborted exchange cannot be resumed.
        self.state = ScramState.FAILED
        if previous is not expected:
            raise _malformed("The message comes out of turn.")


def _attribute(text: bytes, name: bytes) -> bytes:
    if text[:2] != name + b"=":
        raise _malformed(f'Expected attribute "{name.decode()}".')
    return text[2:]


def _unb64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _malformed("An attribute is not base64.") from None


def _malformed(detail: str) -> Wal2LakeError:
    return ProtocolViolation("malformed SCRAM message", detail=detail)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
