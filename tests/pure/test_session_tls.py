"""TLS at the front door, with psycopg's libpq as client; and who gets in by which record."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.fakes.door import ROLES, FakeDoor, open_door
from tests.fakes.front import Front, pass_on, readable
from tests.fakes.tls_front import Authority

from wal2lake.catalog import Role
from wal2lake.door import Entrance
from wal2lake.door.encryption import make_encryption
from wal2lake.door.hba import parse_rules
from wal2lake.errors import ConfigurationError
from wal2lake.model import Oid
from wal2lake.settings import FILE_NAME, Settings, load, render_default_toml
from wal2lake.wire.scram import create_verifier

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"

HBA = """
hostssl all certified all cert
hostssl all alice     all trust
hostssl all proved    all scram-sha-256
host    all all       all reject
"""


class _Between(Front):
    """Ends the client's TLS with a certificate of its own, and passes on what it reads."""

    def __init__(self, port: int, authority: Authority) -> None:
        self._ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ours.load_cert_chain(*authority.issue("between", "server"))
        self._theirs = ssl.create_default_context()
        self._theirs.check_hostname = False
        self._theirs.verify_mode = ssl.CERT_NONE
        super().__init__(port)

    def _serve(self, client: socket.socket) -> None:
        while client.recv(8, socket.MSG_WAITALL) != SSL_REQUEST:
            client.sendall(b"N")
        client.sendall(b"S")
        with self._reach() as plain:
            plain.sendall(SSL_REQUEST)
            assert plain.recv(1) == b"S"
            with (
                self._ours.wrap_socket(client, server_side=True) as inside,
                self._theirs.wrap_socket(plain) as server,
            ):
                while all(
                    pass_on(source, server if source is inside else inside)
                    for source in readable(inside, server)
                ):
                    pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "keys")


def settings_of(folder: Path, authority: Authority, **changes: str) -> Settings:
    certificate, key = authority.issue("server", "server")
    given = {
        "node.ssl": "on",
        "node.ssl_cert_file": str(certificate),
        "node.ssl_key_file": str(key),
        "node.ssl_ca_file": str(authority.certificate),
        **{f"node.{name}": value for name, value in changes.items()},
    }
    (folder / FILE_NAME).write_text(render_default_toml())
    return load(folder, {}, given)


@pytest.fixture
def door(authority: Authority, tmp_path: Path) -> Iterator[FakeDoor]:
    encryption = make_encryption(settings_of(tmp_path, authority))
    password = str(create_verifier("secret", b"0123456789abcdef"))
    roles = {
        **ROLES,
        "certified": Role(Oid(12), "certified", True, None),
        "proved": Role(Oid(13), "proved", True, password),
    }
    entrance = Entrance(parse_rules(HBA, "pg_hba.conf"), encryption)
    with open_door(roles=roles.get, entrance=entrance) as opened:
        yield opened


def test_a_client_verifies_the_node_and_reads_much(
    door: FakeDoor, authority: Authority
) -> None:
    secured = door.conninfo(
        sslmode="verify-full", sslrootcert=str(authority.certificate)
    )
    for negotiation in ("postgres", "direct"):
        with psycopg.connect(**secured, sslnegotiation=negotiation) as client:
            assert client.pgconn.ssl_in_use
            # Megabytes, in records of 16 KiB, and a large parameter the other way.
            rows = client.execute("rows 200000").fetchall()
            assert len(rows) == 200_000
            text = b"x" * 3_000_000
            echoed = client.pgconn.exec_params(b"echo", [b"1", text])
            assert echoed.get_value(0, 1) == text
    with pytest.raises(psycopg.OperationalError, match="verify failed"):
        psycopg.connect(**{**secured, "sslrootcert": "system"})


def test_a_statement_is_cancelled_and_the_end_is_said(door: FakeDoor) -> None:
    with psycopg.connect(**door.conninfo(sslmode="require")) as client:

        def cancel() -> None:
            assert door.journal.waiting.wait(10)
            client.cancel_safe()

        timer = threading.Thread(target=cancel)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute("wait")
        timer.join()
        client.rollback()
        door.listener.terminate(client.info.backend_pid)
        with pytest.raises(psycopg.errors.AdminShutdown):
            client.execute("text 'x'")


def test_records_say_who_gets_in_and_how(door: FakeDoor, authority: Authority) -> None:
    refused = (
        (
            {"sslmode": "disable"},
            'pg_hba.conf rejects connection for host "127.0.0.1",'
            ' user "alice", database "lake", no encryption',
        ),
        ({"sslmode": "require", "user": "bob"}, 'user "bob", database "lake", SSL'),
        (
            {"sslmode": "require", "user": "certified"},
            "connection requires a valid client certificate",
        ),
    )
    for changes, message in refused:
        with pytest.raises(psycopg.OperationalError, match=message):
            psycopg.connect(**door.conninfo(**changes))
    certificate, key = authority.issue("certified", "certified")
    mine = {"sslmode": "require", "sslcert": str(certificate), "sslkey": str(key)}
    with psycopg.connect(**door.conninfo(user="certified", **mine)) as client:
        assert client.info.user == "certified"
    other, key = authority.issue("other", "other")
    mine = {"sslmode": "require", "sslcert": str(other), "sslkey": str(key)}
    with pytest.raises(
        psycopg.OperationalError,
        match='certificate authentication failed for user "certified"',
    ):
        psycopg.connect(**door.conninfo(user="certified", **mine))
    with open_door() as plain, psycopg.connect(**plain.conninfo()) as client:
        assert not client.pgconn.ssl_in_use


def test_a_password_is_bound_to_the_channel_it_is_proved_over(
    door: FakeDoor, authority: Authority
) -> None:
    mine = {"user": "proved", "password": "secret"}
    # With "require" libpq gives up unless the binding was part of the proof.
    for binding in ("require", "prefer", "disable"):
        given = door.conninfo(sslmode="require", channel_binding=binding, **mine)
        with psycopg.connect(**given) as client:
            assert client.info.user == "proved"
    wrong = {**mine, "password": "guessed"}
    with pytest.raises(psycopg.OperationalError, match="password authentication fail"):
        psycopg.connect(
            **door.conninfo(sslmode="require", channel_binding="require", **wrong)
        )
    # Somebody in between, whose certificate is another one of the same authority.
    with (
        _Between(door.port, authority) as between,
        pytest.raises(
            psycopg.OperationalError, match="SCRAM channel binding check failed"
        ),
    ):
        psycopg.connect(
            **{**door.conninfo(sslmode="require", **mine), "port": between.port}
        )


def test_what_is_no_handshake_harms_nobody(door: FakeDoor) -> None:
    def answer(sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", door.port), timeout=10) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            found = b""
            while data := client.recv(4096):
                found += data
            return found

    # What came behind the request was not encrypted.
    assert answer(SSL_REQUEST + b"\x00" * 20) in (b"S", b"")
    assert answer(SSL_REQUEST)[:1] == b"S"
    assert answer(b"\x16\x03\x01" + b"\xff" * 50)[:1] in (b"\x15", b"")
    # TLS at once, by a client that does not say what it will speak.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", door.port), timeout=10)
    with context.wrap_socket(plain) as secured:
        assert secured.recv(10) == b""
    with psycopg.connect(**door.conninfo(sslmode="require")) as client:
        assert client.execute("text 'x'").fetchall() == [("x",)]


def test_files_are_read_again_and_wrong_ones_are_not_taken(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "hba").write_text("host all all all trust\n")
    settings = settings_of(tmp_path, authority, hba_file="hba")
    entrance = Entrance.of(settings)
    rules, tls = entrance.rules, entrance.tls
    assert tls is not None

    class Log:
        def __init__(self) -> None:
            self.said: list[str] = []

        def error(self, text: str, error: ConfigurationError) -> None:
            self.said.append(f"{text}: {error.message}")

    log = Log()
    (tmp_path / "hba").write_text("nonsense\n")
    key = Path(settings.node.ssl_key_file)
    key.chmod(0o644)
    entrance.reload(settings, log)
    assert (entrance.rules, entrance.tls) == (rules, tls)
    assert log.said == [
        'the file of "hba_file" was not reloaded: invalid connection type "nonsense"',
        f'SSL configuration was not reloaded: private key file "{key}" has group or'
        " world access",
    ]
    with pytest.raises(ConfigurationError, match="invalid connection type"):
        Entrance.of(settings)
    (tmp_path / "hba").write_text("host all all all reject\n")
    key.chmod(0o600)
    entrance.reload(settings, log)
    assert entrance.rules != rules and entrance.tls is not tls and len(log.said) == 2
    key.write_text("no key")
    with pytest.raises(ConfigurationError, match="could not load server certificate"):
        make_encryption(settings)
    key.unlink()
    with pytest.raises(ConfigurationError, match="could not access private key file"):
        make_encryption(settings)
