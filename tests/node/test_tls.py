"""TLS on either side: a PostgreSQL that speaks it itself and wants the subscriber's certificate
(sslmode and clientcert are verify-full), and a node that lets only certain subscribers in, with
TLS. The servers of the wheel have no TLS; the fetched PostgreSQL 17 has.

A TLS that is not PostgreSQL's own, with service and password files: ``test_roles.py``.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
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


@pytest.mark.slow
def test_a_node_serves_a_subscriber_over_its_own_tls(
    server: PostgresServer, authority: Authority, make_node: Callable[..., Node]
) -> None:
    certificate, key = authority.issue("node", "node")
    node = make_node(
        settings={
            "node.ssl": "on",
            "node.ssl_cert_file": certificate,
            "node.ssl_key_file": key,
            "node.hba_file": "pg_hba.conf",
        }
    )
    superuser = getpass.getuser()
    rules = node.directory / "pg_hba.conf"
    rules.write_text(
        f"hostnossl all {superuser} 127.0.0.1/32 scram-sha-256\n"
        "hostssl lake reader 127.0.0.1/32 scram-sha-256\n"
    )
    node.start()
    table = "create table public.served (id int primary key, v text)"
    node.sql(table)
    node.sql(
        "insert into public.served select n, repeat('x', 1000)"
        " from generate_series(1, 5000) as g (n)"
    )
    node.sql("create publication p for table public.served")
    node.sql("create role reader login replication password 'secret'")
    node.sql("grant select on public.served to reader")
    server.psql(table)
    facts = dict(one.split("=", 1) for one in node.conninfo().split(" ") if "=" in one)

    def conninfo(mode: str, user: str = "reader") -> str:
        port = facts["port"].strip("'")
        return quote_literal(
            f"host=127.0.0.1 port={port} dbname=lake user={user} password=secret"
            f" sslmode={mode} sslrootcert={server.data / 'root.crt'}"
            f"{'' if mode == 'disable' else ' channel_binding=require'}"
            # Not the files of whoever runs the test, which the server may not read.
            f" sslcert={server.data / 'none'} sslkey={server.data / 'none'}"
        )

    for where, text in (
        (conninfo("disable"), 'user "reader", database "lake", no encryption'),
        (conninfo("require", "other"), 'user "other", database "lake", SSL encryption'),
    ):
        with pytest.raises(RuntimeError, match=text):
            server.psql(f"create subscription served connection {where} publication p")
    server.psql(
        f"create subscription served connection {conninfo('verify-full')} publication p"
    )

    def arrives() -> None:
        count = "select count(*), sum(length(v)) from public.served"
        (wanted,) = node.sql(count)
        wait_until(
            lambda: server.psql(count) == "|".join(str(v) for v in wanted),
            timeout_seconds=60,
            describe=lambda: f"{server.psql(count)}: {node.log_text()[-3000:]}",
        )

    arrives()
    assert node.sql(
        "select usename, ssl, version, bits from pg_stat_ssl join pg_stat_activity"
        " using (pid) where application_name = 'served'"
    ) == [("reader", "t", "TLSv1.3", "256")]
    node.sql("update public.served set v = repeat('y', 2000) where id % 2 = 0")
    node.sql("delete from public.served where id > 4000")
    arrives()
    # What the file says from now on holds for those who come from now on.
    rules.write_text("hostnossl all all 127.0.0.1/32 scram-sha-256\n")
    os.kill(node.pids()[0], signal.SIGHUP)

    def turned_away() -> bool:
        try:
            psycopg.connect(conninfo("require").strip("'")).close()
        except psycopg.OperationalError as error:
            return "no pg_hba.conf entry" in str(error)
        return False

    wait_until(turned_away, describe="the new file is obeyed")
    node.sql("insert into public.served values (10000, 'still there')")
    arrives()
    server.psql("alter subscription served disable")
    server.psql("alter subscription served set (slot_name = none)")
    server.psql("drop subscription served")
