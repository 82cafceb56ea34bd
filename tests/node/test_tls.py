"""A PostgreSQL that speaks TLS itself and wants the subscriber's certificate: sslmode and
clientcert are verify-full. The servers of the wheel have no TLS; the fetched PostgreSQL 17 has.

A TLS that is not PostgreSQL's own, with service and password files: ``test_roles.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.tls_front import Authority
from tests.older_postgres import Unavailable, installation

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

HBA = """\
hostssl all careful  127.0.0.1/32 trust clientcert=verify-full
host    all postgres 127.0.0.1/32 trust
"""
FILL = """
    create role careful login replication;
    create schema tls; grant usage on schema tls to careful;
    create table tls.t (id int primary key, v text);
    insert into tls.t select i, repeat('x', 1000) from generate_series(1, 4000) i;
    grant select on tls.t to careful; create publication tls for table tls.t;
"""
ENCRYPTED = """
    select count(*), bool_and(ssl and client_dn = '/CN=careful')
    from pg_stat_ssl join pg_stat_activity using (pid)
    where usename = 'careful' and application_name ~ '{}'
"""

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "keys")


@pytest.fixture
def server(authority: Authority) -> Iterator[PostgresServer]:
    try:
        found = installation(17)
    except Unavailable as error:
        pytest.skip(str(error))
    with PostgresServer(found) as server:
        if not server.psql("show ssl_library"):
            pytest.skip("this PostgreSQL 17 was built without TLS")
        certificate, key = authority.issue("server", "server")
        for source, name in (
            (certificate, "server.crt"),
            (key, "server.key"),
            (authority.certificate, "root.crt"),
        ):
            shutil.copy(source, server.data / name)
        (server.data / "pg_hba.conf").write_text(HBA)
        server.installation.give(server.data)
        server.psql(FILL)
        server.set(ssl="on", ssl_ca_file="root.crt")
        server.restart()
        yield server


def test_copy_and_stream_over_postgresqls_own_tls(
    server: PostgresServer, authority: Authority, tmp_path: Path, node: Node
) -> None:
    certificate, key = authority.issue("client", "careful")
    stranger, strangers_key = authority.issue("stranger", "stranger")
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other" / "keys")
    foreign, foreign_key = other.issue("client", "careful")
    good = {
        "host": "127.0.0.1",
        "user": "careful",
        "sslmode": "verify-full",
        "sslrootcert": str(authority.certificate),
        "sslcert": str(certificate),
        "sslkey": str(key),
    }

    def conninfo(**changes: str) -> str:
        return quote_literal(server.conninfo(**{**good, **changes}))

    missing = str(tmp_path / "missing")
    for changes, text in (
        (
            {"sslmode": "disable"},
            'FATAL:  no pg_hba.conf entry for host "127.0.0.1", user "careful",'
            ' database "postgres", no encryption',
        ),
        (
            {"sslrootcert": str(other.certificate)},
            "SSL error: certificate verify failed",
        ),
        ({"sslrootcert": missing}, f'root certificate file "{missing}" does not exist'),
        (
            {"host": "localhost", "hostaddr": "127.0.0.1"},
            'does not match host name "localhost"',
        ),
        (
            {"sslcert": missing, "sslkey": missing},
            "FATAL:  connection requires a valid client certificate",
        ),
        (
            {"sslcert": str(stranger), "sslkey": str(strangers_key)},
            'FATAL:  "trust" authentication failed for user "careful"',
        ),
        (
            {"sslcert": str(foreign), "sslkey": str(foreign_key)},
            "alert unknown ca",
        ),
    ):
        with pytest.raises(PublisherError) as caught:
            node.sql(
                f"create subscription tls connection {conninfo(**changes)}"
                " publication tls"
            )
        assert caught.value.sqlstate == "08006", changes
        told = caught.value.message
        assert told.startswith(
            'subscription "tls" could not connect to the publisher: '
        ), told
        assert text in told, changes
    assert server.psql("select count(*) from pg_replication_slots") == "0"

    with TcpProxy("127.0.0.1", server.port) as proxy:
        proxy.limit(1_500_000)
        node.sql(
            "create subscription tls connection"
            f" {conninfo(port=str(proxy.port))} publication tls"
        )
        copies = ENCRYPTED.format("_sync_[0-9]+_[0-9]+$")
        wait_until(
            lambda: server.psql(copies).endswith("|t"),
            timeout_seconds=60,
            describe="a reader of the copy",
        )
        assert server.psql(ENCRYPTED.format("_sync_[0-9]+$")) == "2|t", (
            "slot and snapshot"
        )
        proxy.limit(None)
        mirror = Mirror(node, server.conninfo(), "tls")
        try:
            mirror.synced()
            server.psql("update tls.t set v = 'streamed' where id < 10")
            mirror.assert_equal(["tls.t"])
            assert server.psql(ENCRYPTED.format("^tls$")) == "1|t"
            # Errors of a subscription that runs are libpq's, too, and pass.
            node.sql(
                "alter subscription tls connection"
                f" {conninfo(sslrootcert=str(other.certificate))}"
            )
            node.wait_for(
                "select error from wal2lake.subscription_errors where subname = 'tls'",
                lambda rows: "SSL error: certificate verify failed" in str(rows),
            )
            server.psql("delete from tls.t where id > 3000")
            node.sql(f"alter subscription tls connection {conninfo()}")
            mirror.assert_equal(["tls.t"])
            assert server.psql(ENCRYPTED.format("^tls$")) == "1|t"
        finally:
            node.sql("drop subscription tls")
            node.sql("drop schema tls cascade")
