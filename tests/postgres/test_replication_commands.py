"""wire.replication and a real PostgreSQL 18 refuse the same commands, in the same words."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from psycopg import pq
from tests.conftest import Database

from wal2lake.errors import UsageError
from wal2lake.wire.replication import (
    CreateReplicationSlot,
    StartLogical,
    StartPhysical,
    read_command,
    read_pgoutput_options,
    validate_slot_name,
)

Said = tuple[str, str, str, str]
"""SQLSTATE, message, hint and context of an error."""
NO_ERROR = ("", "", "", "")

_FIELDS = (
    pq.DiagnosticField.SQLSTATE,
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.MESSAGE_HINT,
    pq.DiagnosticField.CONTEXT,
)

REFUSED = r"""
IDENTIFY_SYSTEM;;
IDENTIFY_SYSTEM x
IDENTIFY_SYSTEM -- x
SHOW TIME ZONE
SHOW
SHOW a.
SHOW 'a'
TIMELINE_HISTORY 0
TIMELINE_HISTORY 0 'x
TIMELINE_HISTORY 4294967296
TIMELINE_HISTORY -1
CREATE_REPLICATION_SLOT a
CREATE_REPLICATION_SLOT "Bad-Name" LOGICAL pgoutput
CREATE_REPLICATION_SLOT "" LOGICAL pgoutput
CREATE_REPLICATION_SLOT a"b" LOGICAL pgoutput
CREATE_REPLICATION_SLOT é LOGICAL pgoutput
CREATE_REPLICATION_SLOT a$b LOGICAL pgoutput
CREATE_REPLICATION_SLOT "Bad" LOGICAL pgoutput (BOGUS)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput ("BOGUS" 'x')
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (snapshot 'zzz')
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (SNAPSHOT 'use', SNAPSHOT 'zzz')
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (SNAPSHOT)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (SNAPSHOT 'USE')
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (SNAPSHOT 4294967295)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (TWO_PHASE maybe)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (TWO_PHASE 2)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (two_phase '1')
CREATE_REPLICATION_SLOT a LOGICAL pgoutput ()
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (RESERVE_WAL)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput RESERVE_WAL
CREATE_REPLICATION_SLOT a LOGICAL pgoutput EXPORT_SNAPSHOT NOEXPORT_SNAPSHOT
CREATE_REPLICATION_SLOT a LOGICAL pgoutput USE_SNAPSHOT, TWO_PHASE
CREATE_REPLICATION_SLOT a PHYSICAL pgoutput
CREATE_REPLICATION_SLOT a PHYSICAL TWO_PHASE
CREATE_REPLICATION_SLOT a PHYSICAL (failover)
CREATE_REPLICATION_SLOT a PHYSICAL (failover 'x')
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (WAIT)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (PHYSICAL 1)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (READ_REPLICATION_SLOT)
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (FAILOVER E'x')
CREATE_REPLICATION_SLOT a LOGICAL pgoutput (FAILOVER 'x
CREATE_REPLICATION_SLOT SLOT LOGICAL pgoutput
CREATE_REPLICATION_SLOT a TEMPORARY TEMPORARY LOGICAL pgoutput
CREATE_REPLICATION_SLOT "a
ALTER_REPLICATION_SLOT nope (BOGUS)
ALTER_REPLICATION_SLOT nope (FAILOVER, failover)
ALTER_REPLICATION_SLOT nope (FAILOVER 'x')
ALTER_REPLICATION_SLOT nope
DROP_REPLICATION_SLOT nope wait
DROP_REPLICATION_SLOT nope WAIT WAIT
START_REPLICATION LOGICAL 0/0
START_REPLICATION SLOT s TIMELINE 3
START_REPLICATION 0/0 TIMELINE 0
START_REPLICATION SLOT s LOGICAL G/0
START_REPLICATION SLOT s LOGICAL 0/0 ()
START_REPLICATION SLOT s LOGICAL 0/0 (TWO_PHASE 'on')
START_REPLICATION SLOT s LOGICAL 0/0 (bogus E'x')
START_REPLICATION SLOT s LOGICAL 0/0
UPLOAD_MANIFEST x
BASE_BACKUP x
BASE_BACKUP ()
"""
REFUSED_OPTIONS = r"""
proto_version 4
proto_version '4'
publication_names 'p'
proto_version '5', publication_names 'p'
proto_version '', publication_names 'p'
proto_version ' ', publication_names 'p'
proto_version '4x', publication_names 'p'
proto_version '-1', publication_names 'p'
proto_version '-18446744073709551616', publication_names 'p'
proto_version '-18446744073709551607', publication_names 'p'
proto_version '4294967295', publication_names 'p'
proto_version '4294967296', publication_names 'p'
proto_version '99999999999999999999999', publication_names 'p'
proto_version ' +4', publication_names 'p,'
proto_version '4', publication_names 'p q'
proto_version '4', publication_names ',p'
proto_version '4', publication_names '"p'
proto_version '4', publication_names 'p', bogus 'x'
proto_version '4', proto_version 'x'
proto_version '4', publication_names 'p', binary 'x'
proto_version '4', publication_names 'p', messages '1'
proto_version '4', publication_names 'p', streaming 'x'
proto_version '1', publication_names 'p', streaming
proto_version '2', publication_names 'p', streaming 'PARALLEL'
proto_version '2', publication_names 'p', two_phase 'TRUE'
proto_version '4', publication_names 'p', origin 'foo'
proto_version '4', publication_names 'p', origin
"""
"""Of pgoutput, in START_REPLICATION."""


@contextmanager
def _walsender(database: Database) -> Iterator[Callable[[str], Said]]:
    conninfo = database.conninfo(replication="database", client_encoding="UTF8")
    connection = pq.PGconn.connect(conninfo.encode())

    def ask(command: str) -> Said:
        result = connection.exec_(command.encode())
        assert result.status != pq.ExecStatus.COPY_BOTH, command
        fields = [(result.error_field(one) or b"").decode() for one in _FIELDS]
        return fields[0], fields[1], fields[2], fields[3]

    try:
        yield ask
    finally:
        connection.finish()


def _ours(text: str) -> Said:
    try:
        command = read_command(text)
        if isinstance(command, CreateReplicationSlot):
            validate_slot_name(command.slot)
        if isinstance(command, StartLogical) and command.slot == "s":
            read_pgoutput_options(command.options, slot=command.slot)
    except UsageError as error:
        return error.sqlstate, error.message, error.hint or "", error.context or ""
    return NO_ERROR


def test_commands_are_refused_in_postgresqls_words(pg18: Database) -> None:
    pg18.psql("select pg_create_logical_replication_slot('s', 'pgoutput')")
    with _walsender(pg18) as ask:
        start = "START_REPLICATION SLOT s LOGICAL 0/0"
        asked = [
            f"{start} ({options})" for options in REFUSED_OPTIONS.split("\n") if options
        ]
        for text in (*filter(None, REFUSED.split("\n")), *asked):
            if (ours := _ours(text)) == NO_ERROR:
                # It is understood; what it asks for is not there.
                assert ask(text)[0] == "58P01", text
            else:
                assert ours == ask(text), text


WORDS = r"""
START_REPLICATION CREATE_REPLICATION_SLOT ALTER_REPLICATION_SLOT DROP_REPLICATION_SLOT
READ_REPLICATION_SLOT TIMELINE_HISTORY IDENTIFY_SYSTEM SHOW WAIT SLOT Slot LOGICAL PHYSICAL
TEMPORARY TIMELINE TWO_PHASE RESERVE_WAL USE_SNAPSHOT snapshot failover true 'use' 'off' E'x'
"Nope" "No pe" nope nope.x 0/0 1F/fF 1G/1 0 1 7 ( ) ( ) ( ) , ; ; . - -- 'x
"""
STARTS = (
    "START_REPLICATION",
    'START_REPLICATION SLOT "Nope"',
    'START_REPLICATION SLOT "Nope" LOGICAL 0/0 (',
    'CREATE_REPLICATION_SLOT "Nope"',
    'CREATE_REPLICATION_SLOT "Nope" LOGICAL x',
    'CREATE_REPLICATION_SLOT "Nope" LOGICAL x (',
    'CREATE_REPLICATION_SLOT "Nope" PHYSICAL (',
    "ALTER_REPLICATION_SLOT nope (",
    "DROP_REPLICATION_SLOT nope",
    "SHOW nope",
    "TIMELINE_HISTORY 7",
    "IDENTIFY_SYSTEM",
)


def test_sentences_without_sense_are_understood_alike(pg18: Database) -> None:
    chance, words = random.Random(5), WORDS.split()
    understood = 0
    with _walsender(pg18) as ask:
        for _ in range(3000):
            start = chance.choice(STARTS)
            rest = chance.choices(words, k=chance.randint(0, 5))
            text = " ".join((start, *rest, *([")"] * (chance.random() < 0.5))))
            ours = _ours(text)
            if ours == NO_ERROR:
                command = read_command(text)
                if isinstance(command, StartPhysical) and command.slot is None:
                    continue
                assert ask(text)[0] != "42601", text
                understood += 1
            else:
                assert ours == ask(text), text
    assert understood > 50
