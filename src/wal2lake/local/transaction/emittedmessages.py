"""Messages of pg_logical_emit_message(), and empty transactions of definitions, for the publisher's
log.

    transaction                   stored in                         from
    --------------------------    ------------------------------    -------------
    none                          the publisher's log               the call on
    one that writes tables        the commit of one of its tables   COMMIT on
    one that writes none          the publisher's log               COMMIT on

Without a slot nobody can ever read messages, so they are not stored. All messages are durable when
the session continues, so ``flush`` has no further effect.

Source: pg_logical_emit_message_text() in logicalfuncs.c; manual, section 9.28.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.capture import Emitted, OriginMark
from wal2lake.local.ports import HasPublishing
from wal2lake.observe import get_logger
from wal2lake.publish.capture.statementchanges import Statement
from wal2lake.publish.service import Publishing


def emit(
    node: HasPublishing,
    enqueue: Callable[[Emitted], None],
    transactional: bool,
    prefix: str,
    content: bytes,
) -> int:
    """Emit a message and return an LSN.

    ``enqueue`` takes a transactional message. Its position is unknown before the commit, so the
    present end of the log is returned."""
    capture = _publishing(node).capture
    message = Emitted(prefix, content)
    if not transactional:
        return int(capture.emit((message,), transactional=False))
    enqueue(message)
    end = capture.end()
    return int(capture.catch_up_for_long().lsn if end is None else end)


def emit_transaction(
    node: HasPublishing,
    messages: Sequence[Emitted],
    origin: OriginMark | None,
    statements: str,
    xid: int,
) -> None:
    """Log a transaction that has changed no table."""
    capture = _publishing(node).capture
    capture.emit(
        messages, transactional=True, origin=origin, statements=statements, xid=xid
    )


@contextmanager
def empty_transaction(
    node: HasPublishing, check: Callable[[], None], xid: Callable[[], int] | None = None
) -> Iterator[None]:
    """Log an empty transaction for the definitions made inside.

    PostgreSQL logs a transaction of the catalog's tables, whose rows are not decoded: output
    plugins see its begin and commit, unless they skip empty transactions. If nothing was defined
    (IF EXISTS), nothing is logged. ``xid``: the number of a block that commits its definitions."""
    before = node.catalog.written
    yield
    defined = xid is not None or node.catalog.written != before
    if node.publishing is None or not defined or not has_slots(node):
        return
    try:
        node.publishing.capture.defined(check, None if xid is None else xid())
    except Exception as error:
        # The definition stands, and subscribers miss nothing.
        get_logger().warning(
            "could not log a definition for decoding", reason=str(error)
        )


def has_slots(node: HasPublishing) -> bool:
    """True if there is a slot."""
    return node.publishing is not None and bool(node.publishing.slots.all())


def decodable_messages(
    node: HasPublishing, messages: Sequence[Emitted]
) -> Sequence[Emitted]:
    """Return the messages if a slot can read them."""
    return messages if messages and _publishing(node).slots.all() else ()


@contextmanager
def recorded_statements(
    node: HasPublishing, events: Sequence[Statement | Emitted]
) -> Iterator[str]:
    """Store the statements and messages of a transaction around its commit, if there is a slot.

    Yields the name under which they are stored, or an empty string."""
    if node.publishing is None or not has_slots(node):
        yield ""
        return
    name = None
    try:
        name = node.publishing.statements.keep(events)
    except Exception as error:
        # Capture then derives the changes from the versions; the commit must not fail for that.
        get_logger().warning(
            "could not store statements for decoding", reason=str(error)
        )
    try:
        yield name or ""
    except BaseException:
        if name is not None:
            node.publishing.statements.drop([name])
        raise


def _publishing(node: HasPublishing) -> Publishing:
    if node.publishing is None:
        raise FeatureNotSupportedError("this node does not publish")
    return node.publishing
