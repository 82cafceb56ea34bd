"""Logical messages of a transaction, as a commit of one of its tables carries them. Pure.

Comes in: the commit's word (its user metadata in the table's log) and what
pg_logical_emit_message was given. Goes out: one text, and both of it again:

    local transaction 7 messages [["prefix", "Y29udGVudA=="]]

So they are there if and only if the rows are, and nobody has to remove them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

_MARK: Final = " messages "


class Emitted(NamedTuple):
    """One message."""

    prefix: str
    content: bytes


def with_messages(operation: str, messages: Sequence[Emitted]) -> str:
    """A commit's word, and the messages of its transaction."""
    if not messages:
        return operation
    found = [(m.prefix, base64.b64encode(m.content).decode()) for m in messages]
    return f"{operation}{_MARK}{json.dumps(found)}"


def messages_in(text: str) -> tuple[str, tuple[Emitted, ...]]:
    """A commit's word and its messages; a text that anybody else wrote is a word alone."""
    operation, mark, rest = text.partition(_MARK)
    if not mark:
        return text, ()
    try:
        found = [
            (str(p), base64.b64decode(c, validate=True)) for p, c in json.loads(rest)
        ]
    except (ValueError, TypeError, binascii.Error):
        return text, ()
    return operation, tuple(Emitted(*one) for one in found)
