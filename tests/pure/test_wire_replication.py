"""wire.replication: commands that are understood, those that are not, and round trips.

Texts of errors are compared with a real server's in tests/postgres/test_replication_commands.py.
"""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.errors import InternalError, UsageError
from wal2lake.model import Lsn
from wal2lake.wire.replication import (
    AlterReplicationSlot,
    BaseBackup,
    Command,
    CreateReplicationSlot,
    DropReplicationSlot,
    IdentifySystem,
    Option,
    OriginFilter,
    PgoutputOptions,
    ReadReplicationSlot,
    Show,
    SnapshotAction,
    StartLogical,
    StartPhysical,
    Streaming,
    TimelineHistory,
    UploadManifest,
    is_replication_command,
    read_command,
    read_pgoutput_options,
    validate_slot_name,
    write_command,
    write_pgoutput_options,
)
from wal2lake.wire.replication.slotoptions import CreateOptions

NOTHING = CreateOptions(SnapshotAction.NOTHING)
USE = CreateOptions(SnapshotAction.USE)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (" \t\r\n\f\vIDENTIFY_SYSTEM ;", IdentifySystem()),
        ("SHOW Server_Version", Show("server_version")),
        ('SHOW a."B"', Show("a.B")),
        ('SHOW"x"', Show("x")),
        ("READ_REPLICATION_SLOT s", ReadReplicationSlot("s")),
        ("TIMELINE_HISTORY 4294967295", TimelineHistory(2**32 - 1)),
        ("TIMELINE_HISTORY 4294967297", TimelineHistory(1)),
        ("TIMELINE_HISTORY " + "9" * 5000, TimelineHistory(2**32 - 1)),
        ("BASE_BACKUP", BaseBackup()),
        (
            "BASE_BACKUP (LABEL 'it''s', WAL, MAX_RATE 4294967295, \"X\" Y)",
            BaseBackup(
                (
                    Option("label", "it's"),
                    Option("wal"),
                    Option("max_rate", -1),
                    Option("X", "y"),
                )
            ),
        ),
        ("UPLOAD_MANIFEST", UploadManifest()),
        # PostgreSQL's own subscribers: since 15, before 15, tablesync, since August 2026.
        (
            "CREATE_REPLICATION_SLOT \"sub\" LOGICAL pgoutput (SNAPSHOT 'nothing')",
            CreateReplicationSlot("sub", "pgoutput", options=NOTHING),
        ),
        (
            'CREATE_REPLICATION_SLOT "sub" LOGICAL pgoutput TWO_PHASE NOEXPORT_SNAPSHOT',
            CreateReplicationSlot(
                "sub", "pgoutput", options=CreateOptions(SnapshotAction.NOTHING, True)
            ),
        ),
        (
            "CREATE_REPLICATION_SLOT Sub LOGICAL pgoutput USE_SNAPSHOT",
            CreateReplicationSlot("sub", "pgoutput", options=USE),
        ),
        (
            "CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL \"P\" (FAILOVER, SNAPSHOT 'use')",
            CreateReplicationSlot(
                "s", "P", True, CreateOptions(SnapshotAction.USE, failover=True)
            ),
        ),
        (
            "CREATE_REPLICATION_SLOT s LOGICAL p (TWO_PHASE 0, failover ON)",
            CreateReplicationSlot("s", "p", options=CreateOptions(failover=True)),
        ),
        ("CREATE_REPLICATION_SLOT s LOGICAL p", CreateReplicationSlot("s", "p")),
        (
            "CREATE_REPLICATION_SLOT s PHYSICAL RESERVE_WAL",
            CreateReplicationSlot("s", None, options=CreateOptions(reserve_wal=True)),
        ),
        (
            'ALTER_REPLICATION_SLOT "s" ( FAILOVER true );',
            AlterReplicationSlot("s", True),
        ),
        (
            "ALTER_REPLICATION_SLOT s (two_phase 'off')",
            AlterReplicationSlot("s", None, False),
        ),
        ("DROP_REPLICATION_SLOT a_1 WAIT", DropReplicationSlot("a_1", True)),
        ('DROP_REPLICATION_SLOT "a_1" WAIT', DropReplicationSlot("a_1", True)),
        ('DROP_REPLICATION_SLOT"a""b"', DropReplicationSlot('a"b')),
        ("DROP_REPLICATION_SLOT ÄbC$1", DropReplicationSlot("Äbc$1")),
        ("DROP_REPLICATION_SLOT slot", DropReplicationSlot("slot")),
        ("DROP_REPLICATION_SLOT " + "x" * 99, DropReplicationSlot("x" * 63)),
        ("DROP_REPLICATION_SLOT " + "ü" * 99, DropReplicationSlot("ü" * 31)),
        ("START_REPLICATION 0/0", StartPhysical(None, Lsn(0))),
        (
            "START_REPLICATION SLOT s PHYSICAL a/bC TIMELINE 3",
            StartPhysical("s", Lsn(0xA_0000_00BC), 3),
        ),
        (
            'START_REPLICATION SLOT "s" LOGICAL 1/2ABCDEF0 (proto_version \'4\','
            " streaming 'parallel', origin 'any', publication_names '\"p1\",\"p2\"')",
            StartLogical(
                "s",
                Lsn(0x1_2ABC_DEF0),
                (
                    Option("proto_version", "4"),
                    Option("streaming", "parallel"),
                    Option("origin", "any"),
                    Option("publication_names", '"p1","p2"'),
                ),
            ),
        ),
        (
            "START_REPLICATION SLOT s LOGICAL 123456789/0(a,B)",
            StartLogical(
                "s", Lsn(0x23456789_00000000), (Option("a"), Option("b"))
            ),
        ),
    ],
)  # fmt: skip
def test_commands_are_read(text: str, command: Command) -> None:
    assert is_replication_command(text)
    assert read_command(text) == command
    assert read_command(write_command(command)) == command


@pytest.mark.parametrize(
    "text",
    [
        "",
        "identify_system",
        "Show server_version",
        "select 1",
        "-- c\nIDENTIFY_SYSTEM",
        "/* c */ SHOW x",
        "START_REPLICATIONX",
        '"SHOW" x',
        "SLOT",
        "'SHOW",
        ";",
        "1SHOW x",
    ],
)
def test_everything_else_is_sql(text: str) -> None:
    assert not is_replication_command(text)


_names = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=15
)
_strings = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30
)
_lsns = st.integers(0, 2**64 - 1).map(Lsn)
_timelines = st.integers(1, 2**32 - 1)
_numbers = st.integers(-(2**31), 2**31 - 1)
_flags = st.none() | st.booleans()
_commands: st.SearchStrategy[Command] = st.one_of(
    st.just(IdentifySystem()),
    st.just(UploadManifest()),
    st.builds(Show, _names),
    st.builds(ReadReplicationSlot, _names),
    st.builds(TimelineHistory, _timelines),
    st.builds(
        BaseBackup,
        st.lists(
            st.builds(Option, _names, st.none() | _strings | _numbers), max_size=3
        ).map(tuple),
    ),
    st.builds(
        CreateReplicationSlot,
        _names,
        _names,
        st.booleans(),
        st.builds(
            CreateOptions, st.sampled_from(SnapshotAction), st.booleans(), st.booleans()
        ),
    ),
    st.builds(
        CreateReplicationSlot,
        _names,
        st.none(),
        st.booleans(),
        st.builds(CreateOptions, reserve_wal=st.booleans()),
    ),
    st.builds(AlterReplicationSlot, _names, _flags, st.booleans()),
    st.builds(DropReplicationSlot, _names, st.booleans()),
    st.builds(StartPhysical, st.none() | _names, _lsns, st.none() | _timelines),
    st.builds(
        StartLogical,
        _names,
        _lsns,
        st.lists(st.builds(Option, _names, st.none() | _strings), max_size=3).map(
            tuple
        ),
    ),
)


@given(_commands)
def test_what_is_written_is_read_again(command: Command) -> None:
    text = write_command(command)
    assert is_replication_command(text)
    assert read_command(text) == command


_words = (
    *"(),;.'\"-/*",
    "''",
    "E'x'",
    "'on'",
    '"x"',
    "x",
    "0/0",
    "7",
    "SLOT",
    "LOGICAL",
    "PHYSICAL",
    "TEMPORARY",
    "TIMELINE",
    "WAIT",
    "TWO_PHASE",
    "snapshot",
    "proto_version",
    "publication_names",
    "\udc80",
    "é",
)


@given(
    st.sampled_from(sorted(("ALTER_REPLICATION_SLOT", "BASE_BACKUP", "SHOW",
        "CREATE_REPLICATION_SLOT", "DROP_REPLICATION_SLOT", "START_REPLICATION",
        "READ_REPLICATION_SLOT", "TIMELINE_HISTORY", "IDENTIFY_SYSTEM"))),
    st.lists(st.sampled_from(_words) | st.text(string.printable, max_size=3), max_size=9),
)  # fmt: skip
@settings(max_examples=examples(400))
def test_nothing_but_our_errors_comes_out(first: str, rest: list[str]) -> None:
    text = " ".join((first, *rest))
    assert is_replication_command(text)
    try:
        command = read_command(text)
        if isinstance(command, StartLogical):
            read_pgoutput_options(command.options, slot="s")
    except UsageError as error:
        assert error.sqlstate in {"42601", "22023", "42602", "0A000", "XX000"}


_publications = st.lists(_names, max_size=4).map(tuple)


@given(
    st.builds(
        PgoutputOptions,
        st.just(4),
        _publications,
        st.booleans(),
        st.booleans(),
        st.sampled_from(Streaming),
        st.booleans(),
        st.sampled_from(OriginFilter),
    )
)
def test_pgoutput_options_are_read_again(options: PgoutputOptions) -> None:
    written = write_pgoutput_options(options)
    assert read_pgoutput_options(written, slot="s") == options
    command = StartLogical("s", Lsn(1), written)
    assert read_command(write_command(command)) == command


@given(st.text(' ,"aB\t', max_size=8))
def test_publication_names_are_split_or_refused(text: str) -> None:
    options = (Option("proto_version", "1"), Option("publication_names", text))
    try:
        names = read_pgoutput_options(options, slot="s").publication_names
    except UsageError as error:
        assert error.message == "invalid publication_names syntax"
        return
    assert not any(set(name) & {"B", ","} for name in names) or '"' in text
    assert bool(names) == bool(text.strip())


def test_publication_names_fold_and_unquote() -> None:
    options = (
        Option("proto_version", "1"),
        Option("publication_names", ' Ab ,"Ab", "a""b,c" , "" '),
    )
    assert read_pgoutput_options(options, slot="s").publication_names == (
        "ab",
        "Ab",
        'a"b,c',
        "",
    )


def test_an_option_without_its_value_is_refused() -> None:
    """PostgreSQL crashed of it before November 2026."""
    for name in ("proto_version", "publication_names"):
        with pytest.raises(UsageError, match=f"{name} requires a parameter") as raised:
            read_pgoutput_options([Option(name)], slot="s")
        assert raised.value.sqlstate == "42601"
        assert raised.value.context == (
            'slot "s", output plugin "pgoutput", in the startup callback'
        )


def test_slot_names_are_validated() -> None:
    validate_slot_name("a_9")
    validate_slot_name("x" * 63)
    for name, sqlstate in (("", "42602"), ("a\n", "42602"), ("x" * 64, "42622")):
        with pytest.raises(UsageError) as raised:
            validate_slot_name(name)
        assert raised.value.sqlstate == sqlstate


def test_a_name_that_no_command_can_hold_is_our_mistake() -> None:
    with pytest.raises(InternalError):
        write_command(DropReplicationSlot("a\0"))
