"""nextval() and its kin: values of sequences, and what the session has taken of them.

In: who asks, the sequence's OID. Out: a value; what was taken is durable on return, and is not
given back by a rollback. ``number`` tells the calls of one query apart.

Source: sequence.c; manual, section 9.17.
"""

from __future__ import annotations

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.concurrency.sequences import SessionSequences, held
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import Oid


def next_value(node: EngineParts, caller: Caller, number: int, oid: Oid) -> int:
    """nextval; 2200H if there is none."""
    found = next((one for one in node.catalog.sequences() if one.oid == oid), None)
    if found is None:
        # It has just been dropped.
        raise UndefinedObjectError("the sequence does not exist", sqlstate="42P01")
    with held(node.sequences.of(oid), caller.check):
        return _session(caller).take(found, 1)


def set_value(
    node: EngineParts,
    caller: Caller,
    number: int,
    oid: Oid,
    value: int,
    is_called: bool = True,
) -> int:
    """setval; 22003 if it cannot be."""
    with held(node.sequences.of(oid), caller.check):
        node.catalog.set_value(oid, value, is_called=is_called)
    if is_called:
        _session(caller).was_set(oid, value)
    return value


def current_value(node: EngineParts, caller: Caller, number: int, oid: Oid) -> int:
    """currval; 55000 if the session has taken none."""
    found = _session(caller).values.get(oid)
    if found is None:
        name = next((s.name for s in node.catalog.sequences() if s.oid == oid), "")
        raise UsageError(
            f'currval of sequence "{name}" is not yet defined in this session',
            sqlstate="55000",
        )
    return found


def last_value(node: EngineParts, caller: Caller, number: int) -> int:
    """lastval; 55000 if there is none, or not any more."""
    session = _session(caller)
    known = {one.oid for one in node.catalog.sequences()}
    if session.last not in known:
        raise UsageError("lastval is not yet defined in this session", sqlstate="55000")
    return session.values[session.last]


def _session(caller: Caller) -> SessionSequences:
    assert caller.sequences is not None
    return caller.sequences
