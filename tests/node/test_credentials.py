"""Passwords that change: password_command and passfile, against a publisher that asks for SCRAM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer

FIRST, SECOND, THIRD = "the-first-secret", "the-second-secret", "the-third-secret"


@pytest.fixture(scope="module")
def strict() -> Iterator[PostgresServer]:
    """A publisher where ``rotating`` needs a password, and nobody else does."""
    with PostgresServer(18) as server:
        hba = server.data / "pg_hba.conf"
        hba.write_text(
            f"host all rotating 127.0.0.1/32 scram-sha-256\n{hba.read_text()}"
        )
        server.set(log_connections="on")
        server.psql(
            f"create role rotating login replication password '{FIRST}';"
            " create schema cr; create table cr.t (id int primary key, v text);"
            " insert into cr.t values (1, 'copied'); grant usage on schema cr to rotating;"
            " grant select on all tables in schema cr to rotating;"
            " alter default privileges in schema cr grant select on tables to rotating;"
            " create publication cr for tables in schema cr"
        )
        yield server


def rotate(server: PostgresServer, password: str) -> None:
    """Change the role's password, and end its sessions, which the old one has opened."""
    server.psql(
        f"alter role rotating password '{password}'; select pg_terminate_backend(pid)"
        " from pg_stat_activity where usename = 'rotating'"
    )


def create(server: PostgresServer, further: str, options: str = "") -> str:
    conninfo = f"{server.conninfo(user='rotating')} {further}"
    return (
        f"create subscription cr connection {quote_literal(conninfo)} publication cr"
        f" {options}"
    )


def refused(node: Node, sql: str) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        node.sql(sql)
    return caught.value


def holds(node: Node, table: str, count: int) -> None:
    node.wait_for(
        f"select count(*) from cr.{table}", lambda rows: rows == [(str(count),)]
    )


def test_a_command_is_asked_at_each_connect(
    strict: PostgresServer, node: Node, tmp_path: Path
) -> None:
    token, asked = tmp_path / "token", tmp_path / "asked"
    script = tmp_path / "give"
    script.write_text(f'#!/bin/sh\necho once >> "{asked}"\ncat "{token}"\n')
    script.chmod(0o755)
    command = f"password_command='{script} --ticket=t1cket'"

    error = refused(node, create(strict, command))
    assert error.sqlstate == "08006"
    assert 'password_command "give" failed: child process exited with' in str(error)
    assert "No such file" in str(error.detail)
    token.write_text(f"{THIRD}\n")
    assert "password authentication failed" in str(
        refused(node, create(strict, command))
    )
    token.write_text(f"{FIRST}\n")
    node.sql(create(strict, command, "with (auto_refresh = true)"))
    holds(node, "t", 1)

    # It goes on with the new one: the receiver, a copy in Spark's executors, a command.
    rotate(strict, SECOND)
    node.wait_for(
        "select error from wal2lake.subscription_errors where subname = 'cr'"
        " and worker = 'receiver'"
    )
    token.write_text(f"{SECOND}\n")
    strict.psql(
        "create table cr.u as select generate_series(1, 10) id; insert into cr.t"
        " values (2, 'streamed')"
    )
    holds(node, "t", 2)
    holds(node, "u", 10)
    node.sql("alter subscription cr refresh publication")
    assert len(asked.read_text().split()) >= 6

    # Who sees what.
    shown = "select subconninfo from pg_subscription"
    assert "t1cket" in str(node.value(shown)), "a superuser's own"
    node.sql("create role cr_boss superuser login password 'pw'")
    node.sql("create role cr_plain login password 'pw'")
    for role, expected in (
        ("cr_boss", "password_command=********"),
        ("cr_plain", "********"),
    ):
        with node.connect(user=role, password="pw") as client:
            ((said,),) = client.rows(f"{shown} where subname = 'cr'")
        assert str(said).endswith(expected)
        assert "t1cket" not in str(said)
    node.sql("drop role cr_boss; drop role cr_plain")
    said = node.log_text() + str(node.sql("select * from wal2lake.subscription_errors"))
    for secret in (FIRST, SECOND, THIRD, "t1cket"):
        assert secret not in said, secret
    node.sql("drop subscription cr; drop schema cr cascade")
    strict.psql(
        f"drop table cr.u; delete from cr.t where id > 1; alter role rotating"
        f" password '{FIRST}'"
    )


@pytest.mark.slow
def test_a_passfile_is_read_at_each_connect(
    strict: PostgresServer, node: Node, tmp_path: Path
) -> None:
    passfile = tmp_path / "passfile"
    further = f"passfile={passfile}"
    assert "cannot be read: No such file or directory" in str(
        refused(node, create(strict, further)).hint
    )

    def write(password: str) -> None:
        passfile.write_text(f"127.0.0.1:*:*:rotating:{password}\n")
        passfile.chmod(0o600)

    write(FIRST)
    passfile.chmod(0o644)
    assert "Others may read the passfile" in str(
        refused(node, create(strict, further)).hint
    )
    write(FIRST)
    node.sql(create(strict, further))
    holds(node, "t", 1)
    rotate(strict, SECOND)
    write(SECOND)
    strict.psql("insert into cr.t values (2, 'streamed')")
    holds(node, "t", 2)
    strict.psql("create table cr.w as select generate_series(1, 7) id")
    node.sql("alter subscription cr refresh publication")
    holds(node, "w", 7)
    assert FIRST not in node.log_text()
    assert SECOND not in node.log_text()
    node.sql("drop subscription cr; drop schema cr cascade")


def test_only_a_superuser_names_a_program(strict: PostgresServer, node: Node) -> None:
    node.sql(
        "create role cr_ann login password 'pw' in role pg_create_subscription;"
        " grant create on database lake to cr_ann; create role cr_top superuser login;"
        " grant cr_top to cr_ann"
    )
    command = "password_command='cat /etc/passwd'"
    try:
        with node.connect(user="cr_ann", password="pw") as client:
            with pytest.raises(PublisherError) as caught:
                client.rows(create(strict, command, "with (connect = false)"))
            assert caught.value.sqlstate == "42501"
            assert caught.value.message == (
                'permission denied to set connection option "password_command"'
            )
        node.sql(create(strict, command, "with (connect = false)"))
        # The privileges of a superuser's role are not enough.
        node.sql("alter subscription cr owner to cr_top")
        with node.connect(user="cr_ann", password="pw") as client:
            with pytest.raises(PublisherError) as caught:
                client.rows(
                    f"alter subscription cr connection {quote_literal(command)}"
                )
            assert caught.value.sqlstate == "42501"
        # Nor does a command of before run for an owner who is none.
        node.sql("alter subscription cr owner to cr_ann")
        node.sql("alter subscription cr enable")
        ((error, state),) = node.wait_for(
            "select error, sqlstate from wal2lake.subscription_errors"
            " where subname = 'cr' and worker = 'receiver'"
        )
        assert state == "42501"
        assert "permission denied to set connection option" in str(error)
    finally:
        node.sql("alter subscription cr disable")
        node.sql("alter subscription cr set (slot_name = none); drop subscription cr")
        node.sql(
            "revoke create on database lake from cr_ann; drop role cr_ann; drop role cr_top"
        )
