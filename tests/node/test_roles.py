"""Roles at a whole node: a subscription of somebody who is no superuser, against a publisher that
asks for passwords; and how a node reaches a publisher that trusts nobody.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY
from tests.fakes.tls_front import Authority, TlsFront

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer

SECRET = "a-word-that-nobody-else-may-read"

LEAST = (
    "create role careful login replication password '{secret}';"
    " grant usage on schema {schema} to careful;"
    " grant select on all tables in schema {schema} to careful"
)
"""All that a subscription's role needs at the publisher (docs/arch/12_security.md)."""


@pytest.fixture
def strict() -> Iterator[PostgresServer]:
    """A publisher where ``careful`` needs a password, and nobody else does."""
    with PostgresServer(18) as server:
        rules(server, "host all careful 127.0.0.1/32 scram-sha-256")
        yield server


def rules(server: PostgresServer, first: str) -> None:
    """Put a line in front of pg_hba.conf's own, in place of the last such line."""
    hba = server.data / "pg_hba.conf"
    own = hba.read_text().partition("# own\n")[2] or hba.read_text()
    hba.write_text(f"{first}\n# own\n{own}")
    # Reloads pg_hba.conf as well.
    server.set(log_connections="on" if "scram" in first else "off")


def publish(server: PostgresServer, name: str) -> None:
    server.psql(
        f"create schema {name}; create table {name}.t (id int primary key, v text);"
        f" insert into {name}.t values (1, 'copied');"
        f" create table {name}.made (id int primary key);"
        f" create publication {name} for tables in schema {name}"
    )
    server.psql(LEAST.format(schema=name, secret=SECRET))


def refused(node: Node, user: str, sql: str) -> PublisherError:
    with (
        node.connect(user=user, password="pw") as client,
        pytest.raises(PublisherError) as caught,
    ):
        client.rows(sql)
    return caught.value


def ask(node: Node, user: str, sql: str) -> list[tuple[str | None, ...]]:
    with node.connect(user=user, password="pw") as client:
        return client.rows(sql)


def create(server: PostgresServer, name: str, **login: str) -> str:
    return (
        f"create subscription {name} connection"
        f" {quote_literal(server.conninfo(**login))} publication {name}"
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the node's OS user has its ``services`` and ``passwords``."""
    return tmp_path_factory.mktemp("roles")


@pytest.fixture(scope="module")
def node(files: Path) -> Iterator[Node]:
    """One that tries again soon: it is refused often here."""
    environ = {
        "PGSERVICEFILE": str(files / "services"),
        "PGPASSFILE": str(files / "passwords"),
    }
    with Node(files / "node", settings=FAST_RETRY, environ=environ) as found:
        yield found.init().start()


@pytest.fixture
def people(node: Node) -> str:
    """ann may create subscriptions, bob may do nothing. Gives the superuser's name."""
    node.sql(
        "create role r_ann login password 'pw' in role pg_create_subscription;"
        " create role r_bob login password 'pw'; grant create on database lake to r_ann"
    )
    return str(node.value("select current_user"))


def stopped_by(node: Node, text: str) -> None:
    sql = "select error from wal2lake.subscription_errors where subname = 'r1'"
    node.wait_for(sql, lambda rows: any(text in str(row[0]) for row in rows))


def holds(node: Node, count: int) -> None:
    # Readable by the superuser, whoever owns it.
    node.wait_for("select count(*) from r1.t", lambda rows: rows == [(str(count),)])


@pytest.mark.slow
def test_a_subscription_of_somebody_who_is_no_superuser(
    strict: PostgresServer, node: Node, people: str
) -> None:
    publish(strict, "r1")
    careful = {"user": "careful", "password": SECRET}

    # A password that nobody asks for is none: here everybody is trusted.
    error = refused(node, "r_ann", create(strict, "r1", password=SECRET))
    assert (error.sqlstate, error.message, error.detail, error.hint) == (
        "2F003",
        "password is required",
        "Non-superuser cannot connect if the server does not request a password.",
        "Target server's authentication method must be changed, or set"
        " password_required=false in the subscription parameters.",
    )
    error = refused(node, "r_bob", create(strict, "r1", **careful))
    assert error.message == "permission denied to create subscription"
    assert SECRET not in str(error)

    # What is missing would be made in her name: not without CREATE. What is there is
    # copied as its owner.
    node.sql("create schema r1; create table r1.t (id int primary key, v text)")
    error = refused(node, "r_ann", create(strict, "r1", **careful))
    assert error.message == "permission denied for schema r1"
    node.sql("grant create, usage on schema r1 to r_ann")
    ask(node, "r_ann", create(strict, "r1", **careful))
    stopped_by(node, f'role "r_ann" cannot SET ROLE to "{people}"')
    assert node.sql("select * from r1.t") == []
    node.sql("alter table r1.t owner to r_ann")
    holds(node, 1)
    owners = node.sql(
        "select pg_get_userbyid(relowner) from pg_class"
        " where oid in ('r1.t'::regclass, 'r1.made'::regclass)"
        " union all select pg_get_userbyid(subowner) from pg_subscription"
    )
    assert owners == [("r_ann",)] * 3

    # Who sees the password.
    sql = "select subconninfo from pg_subscription where subname = 'r1'"
    assert "password=********" in str(ask(node, "r_ann", sql))
    assert "password=********" in str(node.value(sql))
    assert ask(node, "r_bob", sql) == [("********",)]

    # Whose privileges count.
    error = refused(node, "r_bob", "select * from r1.t")
    assert (error.sqlstate, error.message) == (
        "42501",
        "permission denied for schema r1",
    )
    node.sql(f"alter table r1.t owner to {people}")
    strict.psql("insert into r1.t values (2, 'too much')")
    stopped_by(node, f'role "r_ann" cannot SET ROLE to "{people}"')
    ask(node, "r_ann", "alter subscription r1 set (run_as_owner = true)")
    stopped_by(node, "permission denied for table t")
    node.sql("grant insert on r1.t to r_ann")
    holds(node, 2)
    node.sql("revoke insert on r1.t from r_ann")
    strict.psql("insert into r1.t values (3, 'revoked')")
    stopped_by(node, "permission denied for table t")
    node.sql("grant insert on r1.t to r_ann")
    holds(node, 3)

    # The publisher no longer asks: the next connection is refused, here.
    rules(strict, "host all careful 127.0.0.1/32 trust")
    strict.psql("select pg_terminate_backend(pid) from pg_stat_replication")
    stopped_by(node, "password is required")
    node.sql(f"alter subscription r1 owner to {people}")
    strict.psql("insert into r1.t values (4, 'for a superuser')")
    holds(node, 4)
    assert SECRET in str(node.value(sql)), "he is the owner now"
    assert SECRET not in node.log_text()


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="NOT TESTED: certificates, for openssl is not installed",
)
def test_certificates_a_password_file_and_a_service_file(
    strict: PostgresServer, node: Node, files: Path, tmp_path: Path
) -> None:
    publish(strict, "r2")
    authority = Authority(tmp_path / "keys")
    certificate, key = authority.issue("client", "careful")
    with TlsFront(strict.port, authority) as front:
        service = (
            f"[{{name}}]\nhost=127.0.0.1\nport={front.port}\ndbname=postgres\n"
            "user=careful\nsslmode=verify-full\nsslrootcert={root}\n{client}"
        )
        client = f"sslcert={certificate}\nsslkey={key}\n"
        (tmp_path / "other").mkdir()
        other = Authority(tmp_path / "other" / "keys").certificate
        services = files / "services"
        services.write_text(
            service.format(name="good", root=authority.certificate, client=client)
            + service.format(name="unknown", root=other, client=client)
            + service.format(name="bare", root=authority.certificate, client="")
        )
        passwords = files / "passwords"
        passwords.write_text(f"127.0.0.1:{front.port}:*:careful:{SECRET}\n")
        passwords.chmod(0o600)

        def subscribe(name: str) -> str:
            return f"create subscription r2 connection 'service={name}' publication r2"

        with pytest.raises(PublisherError, match="certificate verify failed"):
            node.sql(subscribe("unknown"))
        with pytest.raises(PublisherError) as caught:
            node.sql(subscribe("bare"))
        assert caught.value.sqlstate == "08006"
        assert front.names == []
        node.sql(subscribe("good"))
        node.wait_for("select v from r2.t", lambda rows: rows == [("copied",)])
        strict.psql("insert into r2.t values (2, 'streamed')")
        node.wait_for("select count(*) from r2.t", lambda rows: rows == [("2",)])
        # The commands, the receiver, the keeper, the copy in Spark's executors.
        assert set(front.names) == {"careful"} and len(front.names) >= 5
        kinds = set(
            strict.psql(
                "select case when application_name = 'r2' then 'r2' else 'other' end"
                " from pg_stat_activity where usename = 'careful'"
            ).split()
        )
        assert "r2" in kinds
        assert SECRET not in node.log_text()
        node.sql("drop subscription r2")
