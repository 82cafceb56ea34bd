"""Records as in pg_hba.conf: which one is about whom, and what is refused when it is read."""

from __future__ import annotations

import pytest

from wal2lake.door.auth import AuthMethod
from wal2lake.door.hba import ClientCertificate, Peer, Rule, parse_rules
from wal2lake.errors import ConfigurationError


def found(
    text: str,
    host: str = "10.1.2.3",
    user: str = "ann",
    *,
    encrypted: bool = False,
    database: str = "lake",
    local: str = "10.1.2.9",
) -> Rule | None:
    members = {("ann", "staff"), ("lake", "lake")}
    client = Peer(host, local, encrypted, database, user)
    return parse_rules(text, "pg_hba.conf").find(client, lambda u, r: (u, r) in members)


def test_the_first_record_that_is_about_the_client_decides() -> None:
    text = (
        "# comment\n\n"
        "local all all trust\n"
        "host all evil all reject # even at home\n"
        "hostssl lake,other ann,bob 10.0.0.0/8 scram-sha-256 clientcert=verify-full\n"
        "hostnossl all all 10.0.0.0 255.0.0.0 trust\n"
        "host all all ::1/128 md5\n"
    )
    rejected = found(text, user="evil")
    assert rejected is not None and rejected.method is None
    secured = found(text, encrypted=True)
    assert secured is not None and secured.method is AuthMethod.SCRAM
    assert secured.certificate is ClientCertificate.VERIFY_FULL
    plain = found(text)
    assert plain is not None and plain.method is AuthMethod.TRUST
    assert found(text, "11.0.0.1") is None
    assert found(text, encrypted=True, user="carl") is None
    six = found(text, "::1", user="carl")
    assert six is not None and six.method is AuthMethod.SCRAM
    # An IPv4 address that came over IPv6.
    assert found(text, "::ffff:10.1.2.3") == plain


@pytest.mark.parametrize(
    ("users", "user", "is_about"),
    [
        ("all", "ann", True),
        ('"all"', "ann", False),
        ('"all"', "all", True),
        ("+staff", "ann", True),
        ("+staff", "bob", False),
        ('+"staff"', "ann", True),
        ('"+staff"', "ann", False),
        ("bob , ann", "ann", True),
        ('"a ""b"""', 'a "b"', True),
        ("/^a.n$", "ann", True),
        ("/^b", "ann", False),
        ("Ann", "ann", False),
    ],
)
def test_users(users: str, user: str, is_about: bool) -> None:
    assert (found(f"host all {users} all trust", user=user) is not None) == is_about


@pytest.mark.parametrize(
    ("databases", "user", "is_about"),
    [
        ("sameuser", "ann", False),
        ("sameuser", "lake", True),
        ("samerole", "lake", True),
        ("samerole", "ann", False),
        ("replication", "ann", False),
        ("postgres,lake", "ann", True),
    ],
)
def test_databases(databases: str, user: str, is_about: bool) -> None:
    text = f"host {databases} all all trust"
    assert (found(text, user=user) is not None) == is_about


def test_addresses_and_lines_that_go_on() -> None:
    text = "host all all \\\n  samehost trust\n"
    assert found(text, "127.0.0.1") is not None
    assert found(text, "10.1.2.9") is not None
    assert found(text, "10.1.2.3") is None
    six = "host all all fe80:: ffff:: trust"
    assert found(six, "fe80::1%eth0") is not None
    assert found(six, "fe81::1") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hots all all all trust", 'invalid connection type "hots"'),
        ("host", "end-of-line before database specification"),
        ("host all", "end-of-line before role specification"),
        ("host all all", "end-of-line before IP address specification"),
        ("host all all all", "end-of-line before authentication method"),
        ("host all all 10.0.0.1", "end-of-line before netmask specification"),
        ("host all all 10.0.0.1 255.0.255.0 trust", 'invalid IP mask "255.0.255.0"'),
        ("host all all ::1 ff:: trust", 'invalid IP mask "ff::"'),
        ("host all all example.org trust", 'invalid IP address "example.org"'),
        ("host all all all ldap", 'invalid authentication method "ldap"'),
        ("host all all all,samehost trust", "multiple values specified"),
        ("host all all all trust map=x", "unrecognized authentication option name"),
        ("host all all all trust x", "authentication option not in name=value"),
        ("host all all all cert", "client certificates are only supported"),
        ("hostssl all all all trust clientcert=1", 'invalid value for clientcert: "1"'),
        ("include other.conf", "files cannot be included"),
        ("host @users all all trust", "files cannot be included"),
        ('host "all all all trust', "unterminated quoted string"),
        ("host all /( all trust", "invalid regular expression"),
    ],
)
def test_what_cannot_be_read_names_its_line(line: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_rules(f"# one\nhost all all all trust\n{line}\n", "/node/pg_hba.conf")
    assert message in refused.value.message
    assert refused.value.context == 'line 3 of configuration file "/node/pg_hba.conf"'
