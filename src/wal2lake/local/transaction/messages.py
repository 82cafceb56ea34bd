"""Messages (pg_logical_emit_message) and empty transactions of definitions, for the publisher's
log.

    belongs to                    is kept in                        from
    --------------------------    ------------------------------    ----------------
    no transaction                the publisher's log               the call on
    one that writes tables        the commit of one of its tables   COMMIT on
    one that writes none          the publisher's log               COMMIT on

While there is no slot nobody can ever read it, so nothing is kept. All of it is durable when the
session goes on, so ``flush`` asks for nothing more.

Source: pg_logical_emit_message_text() in logicalfuncs.c; manual, section 9.28.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.capture.messages import Emitted, OriginMark
from wal2lake.local.node import EngineParts
from wal2lake.observe import get_logger
from wal2lake.publish.capture.statements import Statement
from wal2lake.publish.service import Publishing


def emit(
    node: EngineParts,
    waiting: Callable[[Emitted], None],
    transactional: bool,
    prefix: str,
    content: bytes,
) -> int:
    """One call. ``waiting`` takes what belongs to the transaction: its position is not known
    before the commit, so the answer is where the log ends now."""
    capture = _publishing(node).capture
    message = Emitted(prefix, content)
    if not transactional:
        return int(capture.emit((message,), transactional=False))
    waiting(message)
    end = capture.end()
    return int(capture.catch_up_for_long().lsn if end is None else end)


def emit_transaction(
    node: EngineParts,
    messages: Sequence[Emitted],
    origin: OriginMark | None,
    statements: str,
    xid: int,
) -> None:
    """One whose tables are as they were."""
    capture = _publishing(node).capture
    capture.emit(
        messages, transactional=True, origin=origin, statements=statements, xid=xid
    )


@contextmanager
def told_empty(
    node: EngineParts, check: Callable[[], None], xid: Callable[[], int] | None = None
) -> Iterator[None]:
    """Around a definition, or a transaction of them. In PostgreSQL it is a transaction of the
    catalog's tables, whose rows are not decoded: plugins begin and commit it, unless they skip
    what is empty. If nothing was defined (IF EXISTS) there is none. ``xid``: the number of a
    block whose definitions have waited for this commit."""
    before = node.catalog.written
    yield
    defined = xid is not None or node.catalog.written != before
    if node.publishing is None or not defined or not is_read(node):
        return
    try:
        node.publishing.capture.defined(check, None if xid is None else xid())
    except Exception as error:
        # What was defined stays so, and subscribers miss nothing.
        get_logger().warning("a definition is not decoded", reason=str(error))


def is_read(node: EngineParts) -> bool:
    """Whether anybody reads what is published."""
    return node.publishing is not None and bool(node.publishing.slots.all())


def kept(node: EngineParts, messages: Sequence[Emitted]) -> Sequence[Emitted]:
    """Return the messages if anybody can read them."""
    return messages if messages and _publishing(node).slots.all() else ()


@contextmanager
def written_down(
    node: EngineParts, told: Sequence[Statement | Emitted]
) -> Iterator[str]:
    """Around a commit: where what each statement has done and said is written down, if anybody
    reads it; else nothing."""
    if node.publishing is None or not is_read(node):
        yield ""
        return
    kept_as = None
    try:
        kept_as = node.publishing.statements.keep(told)
    except Exception as error:
        # Whatever it was: the difference will be told, and nobody's commit fails for that.
        get_logger().warning("statements are not written down", reason=str(error))
    try:
        yield kept_as or ""
    except BaseException:
        if kept_as is not None:
            node.publishing.statements.drop([kept_as])
        raise


def _publishing(node: EngineParts) -> Publishing:
    if node.publishing is None:
        raise FeatureNotSupportedError("this node does not publish")
    return node.publishing
