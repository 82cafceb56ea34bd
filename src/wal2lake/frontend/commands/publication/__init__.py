"""CREATE, ALTER, DROP and COMMENT ON PUBLICATION.

Takes: parsed statements, who asks, the node. Gives: command tags and notices. Owns: what may be
published, and which row filters there are. Never: reads a row.

    create       CREATE, DROP
    alter        ADD, SET, DROP of objects; SET of options; RENAME TO, OWNER TO, COMMENT
    objects      the tables and schemas that a statement names, looked up and checked
    options      what the options may be
    filters      row filters: ``operations`` and ``constants`` of their expressions
    dependents   what publications ask of tables: ALTER TABLE, REPLICA IDENTITY, UPDATE and DELETE

Source: publicationcmds.c, pg_publication.c (order, texts, SQLSTATEs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from wal2lake.frontend.commands.node import Caller, Node
from wal2lake.frontend.commands.publication.alter import (
    alter_objects,
    alter_owner,
    alter_rename,
    alter_set,
    comment_on_publication,
)
from wal2lake.frontend.commands.publication.create import (
    create_publication,
    drop_publication,
)
from wal2lake.frontend.grammar.publishing.statements import (
    AlterPublicationObjects,
    AlterPublicationOwner,
    AlterPublicationRename,
    AlterPublicationSet,
    CommentOnPublication,
    CreatePublication,
    DropPublication,
)

_Command = Callable[[Node, Caller, Any], str]


def _from_here_on(command: _Command) -> _Command:
    """What it changes holds for what is committed behind it, and for nothing before."""

    def run(node: Node, caller: Caller, statement: Any) -> str:
        with node.ddl_lock:
            node.capture_before(caller.check)
            return command(node, caller, statement)

    return run


COMMANDS: Final[Mapping[type, _Command]] = {
    CreatePublication: _from_here_on(create_publication),
    AlterPublicationObjects: _from_here_on(alter_objects),
    AlterPublicationSet: _from_here_on(alter_set),
    AlterPublicationOwner: alter_owner,
    AlterPublicationRename: _from_here_on(alter_rename),
    DropPublication: _from_here_on(drop_publication),
    CommentOnPublication: comment_on_publication,
}

__all__ = ["COMMANDS"]
