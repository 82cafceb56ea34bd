"""nextval(), setval(), currval() and lastval().

Takes the caller and a sequence's OID; returns a value. A value that was taken is durable on return,
and a rollback does not return it. ``number`` distinguishes the calls of one query.

Source: sequence.c; manual, section 9.17.
"""

from __future__ import annotations

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.concurrency.sequencevalues import SessionSequences, held
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasCatalog, SessionState
from wal2lake.model import Oid


def next_value(node: SessionState, caller: Caller, number: int, oid: Oid) -> int:
    """nextval; 2200H if the sequence is exhausted."""
    sequence = next(
        (candidate for candidate in node.catalog.sequences() if candidate.oid == oid),
        None,
    )
    if sequence is None:
        # The sequence has just been dropped.
        raise UndefinedObjectError(
            f"sequence with OID {oid} does not exist", sqlstate="42P01"
        )
    with held(node.sequences.of(oid), caller.check):
        return _session(caller).take(sequence, 1)


def set_value(
    node: SessionState,
    caller: Caller,
    number: int,
    oid: Oid,
    value: int,
    is_called: bool = True,
) -> int:
    """setval; 22003 if the value is out of range."""
    with held(node.sequences.of(oid), caller.check):
        node.catalog.set_value(oid, value, is_called=is_called)
    if is_called:
        _session(caller).was_set(oid, value)
    return value


def current_value(node: HasCatalog, caller: Caller, number: int, oid: Oid) -> int:
    """currval; 55000 if the session has taken no value of the sequence."""
    value = _session(caller).values.get(oid)
    if value is None:
        name = next((s.name for s in node.catalog.sequences() if s.oid == oid), "")
        raise UsageError(
            f'currval of sequence "{name}" is not yet defined in this session',
            sqlstate="55000",
        )
    return value


def last_value(node: HasCatalog, caller: Caller, number: int) -> int:
    """lastval; 55000 if the session has taken no value, or the sequence has been dropped."""
    session = _session(caller)
    oids = {sequence.oid for sequence in node.catalog.sequences()}
    if session.last not in oids:
        raise UsageError("lastval is not yet defined in this session", sqlstate="55000")
    return session.values[session.last]


def _session(caller: Caller) -> SessionSequences:
    assert caller.sequences is not None
    return caller.sequences
