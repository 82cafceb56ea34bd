"""Options of subscriptions; errors are PostgreSQL 18.4's."""

from __future__ import annotations

import pytest

from wal2lake.errors import Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.sql.grammar import (
    OptionSet,
    SubscriptionOptions,
    check_publications,
    parse,
    subscription_options,
)
from wal2lake.sql.grammar.statements import CreateSubscription


def _options(text: str, accepted: OptionSet = OptionSet.CREATE) -> SubscriptionOptions:
    statement = parse(
        f"create subscription s connection '' publication p with ({text})"
    )
    assert isinstance(statement, CreateSubscription)
    return subscription_options(statement.options, accepted)


def test_defaults_are_those_that_the_node_honours() -> None:
    options = subscription_options((), OptionSet.CREATE)
    assert options == SubscriptionOptions()
    assert (options.connect, options.enabled, options.create_slot) == (True,) * 3
    assert (options.copy_data, options.create_tables) == (True, True)
    assert (options.streaming, options.binary, options.two_phase) == (
        "parallel",
        False,
        False,
    )
    assert (options.origin, options.synchronous_commit) == ("any", "off")
    assert options.password_required and not options.run_as_owner


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        ("foo = 1", "42601", 'unrecognized subscription parameter: "foo"'),
        (
            '"Connect" = false',
            "42601",
            'unrecognized subscription parameter: "Connect"',
        ),
        ("refresh = true", "42601", 'unrecognized subscription parameter: "refresh"'),
        ("connect, connect", "42601", "conflicting or redundant options"),
        ("connect = 2", "42601", "connect requires a Boolean value"),
        ("connect = maybe", "42601", "connect requires a Boolean value"),
        ("connect = -1", "42601", "connect requires a Boolean value"),
        ("connect = 0.5", "42601", "connect requires a Boolean value"),
        ("connect = 'no'", "42601", "connect requires a Boolean value"),
        (
            "connect = false, enabled = true",
            "42601",
            "connect = false and enabled = true are mutually exclusive options",
        ),
        (
            "connect = false, create_slot",
            "42601",
            "connect = false and create_slot = true are mutually exclusive options",
        ),
        (
            "connect = false, copy_data = 1",
            "42601",
            "connect = false and copy_data = true are mutually exclusive options",
        ),
        (
            "slot_name = none",
            "42601",
            "subscription with slot_name = NONE must also set enabled = false",
        ),
        (
            "slot_name = NONE, enabled = true",
            "42601",
            "slot_name = NONE and enabled = true are mutually exclusive options",
        ),
        (
            "slot_name = none, enabled = false",
            "42601",
            "subscription with slot_name = NONE must also set create_slot = false",
        ),
        (
            "slot_name = none, enabled = false, create_slot = true",
            "42601",
            "slot_name = NONE and create_slot = true are mutually exclusive options",
        ),
        (
            "slot_name = 'None'",
            "42602",
            'replication slot name "None" contains invalid character',
        ),
        ("slot_name", "42601", "slot_name requires a parameter"),
        ("slot_name = ''", "42602", 'replication slot name "" is too short'),
        (
            f"slot_name = '{'a' * 64}'",
            "42622",
            f'replication slot name "{"a" * 64}" is too long',
        ),
        (
            "streaming = foo",
            "42601",
            'streaming requires a Boolean value or "parallel"',
        ),
        ("origin = foo", "22023", 'unrecognized origin value: "foo"'),
        (
            "synchronous_commit = foo",
            "22023",
            'invalid value for parameter "synchronous_commit": "foo"',
        ),
        ("table_format = csv", "22023", 'unrecognized table_format value: "csv"'),
    ],
)
def test_wrong_options_of_create_are_refused(
    sql: str, sqlstate: str, message: str
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        _options(sql)
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)


@pytest.mark.parametrize(
    ("sql", "accepted", "sqlstate", "message"),
    [
        (
            "connect",
            OptionSet.SET,
            "42601",
            'unrecognized subscription parameter: "connect"',
        ),
        (
            "binary",
            OptionSet.REFRESH,
            "42601",
            'unrecognized subscription parameter: "binary"',
        ),
        ("lsn = '0/0'", OptionSet.SKIP, "22023", "invalid WAL location (LSN): 0/0"),
        (
            "lsn = xx",
            OptionSet.SKIP,
            "22P02",
            'invalid input syntax for type pg_lsn: "xx"',
        ),
        ("lsn", OptionSet.SKIP, "42601", "lsn requires a parameter"),
    ],
)
def test_wrong_options_of_alter_are_refused(
    sql: str, accepted: OptionSet, sqlstate: str, message: str
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        _options(sql, accepted)
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)


def test_a_mirror_is_an_option_of_both_commands() -> None:
    assert _options("table_format = Iceberg").table_format == "iceberg"
    altered = _options("table_format = iceberg", OptionSet.SET)
    assert altered.stored(stated_only=True)["table_format"] == "iceberg"


def test_the_transaction_to_skip_is_an_lsn_or_none() -> None:
    assert _options("lsn = NONE", OptionSet.SKIP).lsn is None
    assert _options("lsn = '0/64'", OptionSet.SKIP).lsn == 100


def test_values_that_are_honoured_today_are_accepted() -> None:
    options = _options(
        "binary = on, streaming = false, two_phase = 0, disable_on_error = false,"
        " failover = off, origin = Any, synchronous_commit = 'REMOTE_APPLY',"
        " slot_name = my_slot, password_required = false, run_as_owner,"
        " create_tables = false, table_format = Delta"
    )
    assert (options.slot_name, options.synchronous_commit) == (
        "my_slot",
        "REMOTE_APPLY",
    )
    assert (options.create_tables, options.run_as_owner) == (False, True)
    assert not options.password_required
    assert options.binary
    assert [
        _options(f"streaming{word}").streaming for word in ("", " = 0", " = Parallel")
    ] == [
        "on",
        "off",
        "parallel",
    ]
    assert options.stored()["password_required"] == "false"
    assert options.stored()["disable_on_error"] == "false"
    assert [
        _options(f"origin = {word}").origin for word in ("NONE", "'none'", "Any")
    ] == [
        "none",
        "none",
        "any",
    ]


def test_connect_false_turns_what_would_connect_off() -> None:
    options = _options("connect = false, slot_name = none")
    assert (options.enabled, options.create_slot, options.copy_data) == (False,) * 3
    assert options.stated == {"connect", "slot_name"}


def test_skip_takes_a_position_or_none() -> None:
    assert _options("lsn = '1/2'", OptionSet.SKIP).lsn == Lsn.parse("1/2")
    assert _options("lsn = none", OptionSet.SKIP).lsn is None
    assert _options("slot_name = none", OptionSet.SET).slot_name is None


def test_a_publication_is_named_once() -> None:
    check_publications(["p", "P"])
    with pytest.raises(Wal2LakeError, match='publication name "p" used more than once'):
        check_publications(["p", "q", "p"])


def test_what_set_was_not_given_is_not_stored() -> None:
    options = _options("binary, origin = 'NONE', slot_name = s", OptionSet.SET)
    assert options.stored(stated_only=True) == {"binary": "true", "origin": "none"}
