"""SCRAM-SHA-256: the RFC's example, a client written from the RFC, and bad ones."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake.errors import (
    FeatureNotSupportedError,
    ProtocolViolation,
    UsageError,
    Wal2LakeError,
)
from wal2lake.wire.saslprep import saslprep
from wal2lake.wire.scram import (
    ScramServer,
    ScramState,
    create_verifier,
    mock_verifier,
    parse_verifier,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"


def client_final(password, first, challenge, *, header=b"n,,"):
    """What RFC 5802 section 3 has a client send."""
    nonce, salt, iterations = (part[2:] for part in challenge.split(b","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password, base64.b64decode(salt), int(iterations)
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without = b"c=" + base64.b64encode(header) + b",r=" + nonce
    message = first.split(b",,", 1)[1] + b"," + challenge + b"," + without
    stored = hashlib.sha256(client_key).digest()
    signature = hmac.digest(stored, message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    expected = hmac.digest(server_key, message, "sha256")
    return (
        without + b",p=" + base64.b64encode(proof),
        b"v=" + base64.b64encode(expected),
    )


class FixedServer(ScramServer):
    """The server of RFC 7677's example, whose nonce is not base64 of 18 bytes."""

    def __init__(self, verifier, nonce):
        super().__init__(verifier, b"", doomed=False)
        self._nonce = nonce


def test_the_exchange_is_that_of_rfc_7677():
    verifier = create_verifier("pencil", SALT)
    server = FixedServer(verifier, b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.first(FIRST) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert server.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert server.state is ScramState.DONE


def exchange(password, verifier, *, doomed=False, first=FIRST, header=b"n,,"):
    server = ScramServer(verifier, b"n" * 18, doomed=doomed)
    final, signature = client_final(password, first, server.first(first), header=header)
    return server.final(final), signature


def test_a_verifier_survives_its_text_form():
    verifier = create_verifier("pencil", SALT, iterations=10)
    assert parse_verifier(str(verifier)) == verifier
    assert str(verifier).startswith("SCRAM-SHA-256$10:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert verifier.matches("pencil")
    assert not verifier.matches("pen")
    assert "W22" not in repr(verifier)


@pytest.mark.parametrize(
    "text",
    ["", "md5abc", "SCRAM-SHA-256$x:a$b:c", "SCRAM-SHA-256$1:AAAA$AAAA:AAAA", "secret"],
)
def test_what_is_no_verifier_is_none(text):
    assert parse_verifier(text) is None


@pytest.mark.parametrize("header", [b"n,,", b"y,,"])
def test_the_right_password_gets_the_servers_signature(header):
    first = header + FIRST[3:]
    verifier = create_verifier("pencil", SALT, iterations=10)
    answer, expected = exchange(b"pencil", verifier, first=first, header=header)
    assert answer == expected


def test_a_wrong_password_gets_none():
    verifier = create_verifier("pencil", SALT, iterations=10)
    assert exchange(b"pencils", verifier)[0] is None


def test_an_unknown_user_fails_whatever_the_proof():
    verifier = create_verifier("pencil", SALT, iterations=10)
    assert exchange(b"pencil", verifier, doomed=True)[0] is None


def test_an_unknown_user_always_has_the_same_salt():
    assert mock_verifier("bob", b"k").salt == mock_verifier("bob", b"k").salt
    assert mock_verifier("bob", b"k").salt != mock_verifier("bob", b"l").salt
    assert mock_verifier("bob", b"k").salt != mock_verifier("eve", b"k").salt
    assert len(mock_verifier("bob", b"k").salt) == 16


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"p=tls-unique,,n=,r=x", ProtocolViolation),
        (b"n,a=admin,n=,r=x", FeatureNotSupportedError),
        (b"n,,m=ext,n=,r=x", FeatureNotSupportedError),
        (b"n,,r=x", ProtocolViolation),
        (b"n,,n=,r=", ProtocolViolation),
        (b"n,,n=,r=a b", ProtocolViolation),
        (b"n", ProtocolViolation),
        (b"", ProtocolViolation),
        (b"x,,n=,r=x", ProtocolViolation),
    ],
)
def test_a_bad_first_message_is_refused(message, error):
    server = ScramServer(create_verifier("p", SALT, iterations=1), b"", doomed=False)
    with pytest.raises(error):
        server.first(message)
    assert server.state is ScramState.FAILED


END_POINT = hashlib.sha256(b"the certificate").digest()


def bound_server(*, bound=True):
    verifier = create_verifier("pencil", SALT, iterations=1)
    return ScramServer(
        verifier, b"n" * 18, doomed=False, end_point=END_POINT, bound=bound
    )


def test_a_channel_is_bound_by_the_certificate_that_the_client_was_shown():
    for shown in (END_POINT, hashlib.sha256(b"another one").digest()):
        server = bound_server()
        header = b"p=tls-server-end-point,,"
        first = header + FIRST[3:]
        challenge = server.first(first)
        final, expected = client_final(
            b"pencil", first, challenge, header=header + shown
        )
        if shown == END_POINT:
            assert server.final(final) == expected
            continue
        with pytest.raises(UsageError, match="channel binding check failed") as caught:
            server.final(final)
        assert caught.value.sqlstate == "28000"
        assert server.state is ScramState.FAILED


@pytest.mark.parametrize(
    ("bound", "header", "sqlstate", "text"),
    [
        (True, b"n,,", "08P01", "selected SCRAM-SHA-256-PLUS, but"),
        (True, b"y,,", "08P01", "selected SCRAM-SHA-256-PLUS, but"),
        (True, b"p=tls-unique,,", "08P01", 'channel-binding type "tls-unique"'),
        (True, b"q,,", "08P01", "Unexpected channel-binding flag"),
        (False, b"y,,", "28000", "this server does support channel binding"),
        (False, b"p=tls-server-end-point,,", "08P01", "without channel binding"),
    ],
)
def test_what_a_client_says_of_channel_binding_must_fit(bound, header, sqlstate, text):
    with pytest.raises(Wal2LakeError) as caught:
        bound_server(bound=bound).first(header + FIRST[3:])
    assert caught.value.sqlstate == sqlstate
    assert text in f"{caught.value.message} {caught.value.detail}"


def test_a_client_that_cannot_bind_may_do_without():
    server = bound_server(bound=False)
    final, expected = client_final(b"pencil", FIRST, server.first(FIRST))
    assert server.final(final) == expected


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ((b"c=biws", b"c=eSws"), "unexpected SCRAM channel-binding attribute"),
        ((b"c=biws", b"c=%%%%"), "base64"),
        ((b",r=rO", b",r=rP"), "Nonce does not match"),
        ((b",p=", b",q="), "no proof"),
        ((b",p=", b",p=AAAA"), "proof has the wrong length"),
    ],
)
def test_a_bad_final_message_is_refused(change, detail):
    verifier = create_verifier("pencil", SALT, iterations=1)
    server = ScramServer(verifier, b"n" * 18, doomed=False)
    final, _ = client_final(b"pencil", FIRST, server.first(FIRST))
    with pytest.raises(ProtocolViolation) as caught:
        server.final(final.replace(*change))
    assert detail in f"{caught.value.message} {caught.value.detail}"
    assert pickle.loads(pickle.dumps(caught.value)).detail == caught.value.detail


def test_an_exchange_cannot_be_taken_up_again():
    server = ScramServer(create_verifier("p", SALT, iterations=1), b"", doomed=False)
    with pytest.raises(ProtocolViolation):
        server.final(b"c=biws,r=x,p=y")
    with pytest.raises(ProtocolViolation):
        server.first(FIRST)


@settings(deadline=None)
@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_are_an_exchange_or_an_error_of_ours(first, final):
    verifier = create_verifier("p", SALT, iterations=1)
    for opening in (first, b"n,," + first, FIRST):
        server = ScramServer(verifier, b"n" * 18, doomed=False)
        with contextlib.suppress(Wal2LakeError):
            server.first(opening)
            assert server.final(final) is None


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        (b"plain\x07", b"plain\x07"),  # ASCII is never looked at
        ("I\u00adX".encode(), b"IX"),  # RFC 4013, section 3
        ("\u00aa".encode(), b"a"),
        ("\u2168".encode(), b"IX"),
        ("a\u00a0b".encode(), b"a b"),
        ("\u0627\u0031".encode(), "\u0627\u0031".encode()),  # refused, so raw
        ("\u0627\u0031\u0628".encode(), "\u0627\u0031\u0628".encode()),
        ("é\u0007".encode(), "é\u0007".encode()),  # prohibited, so raw
        ("\u0221".encode(), "\u0221".encode()),  # unassigned in Unicode 3.2, so raw
        ("\u00ad".encode(), "\u00ad".encode()),  # nothing left, so raw
        (b"\xff\xfe", b"\xff\xfe"),  # not UTF-8, so raw
    ],
)
def test_passwords_are_prepared_as_postgresql_does(password, prepared):
    assert saslprep(password) == prepared
