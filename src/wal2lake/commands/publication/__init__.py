"""CREATE, ALTER, DROP and COMMENT ON PUBLICATION.

Takes: parsed statements, the caller, the node. Gives: command tags and notices. Owns: the rules for
what may be published, and the analysis of row filters. Never: reads a row.

    create       CREATE, DROP
    alter        ADD, SET, DROP of objects; SET of options; RENAME TO, OWNER TO, COMMENT
    objects      looks up and checks the tables and schemas that a statement names
    options      the options and their values
    filters      row filters: ``operations`` and ``constants`` of their expressions
    dependents   demands on published tables: ALTER TABLE, REPLICA IDENTITY, UPDATE and DELETE

Source: publicationcmds.c, pg_publication.c (order, texts, SQLSTATEs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from wal2lake.commands.publication.alter import (
    alter_objects,
    alter_owner,
    alter_rename,
    alter_set,
    comment_on_publication,
)
from wal2lake.commands.publication.create import (
    create_publication,
    drop_publication,
)
from wal2lake.local.node import Caller, EngineParts
from wal2lake.local.ports import HasCatalog
from wal2lake.model import Oid
from wal2lake.sql.grammar.publishing.publicationstatements import (
    AlterPublicationObjects,
    AlterPublicationOwner,
    AlterPublicationRename,
    AlterPublicationSet,
    CommentOnPublication,
    CreatePublication,
    DropPublication,
)

_Command = Callable[[EngineParts, Caller, Any], str]


def _in_turn(command: _Command, *, publishes: bool = True) -> _Command:
    """Run the command while nobody else changes its publications.

    ``publishes``: the command changes what is published. Earlier commits are captured first, so
    the change applies only to commits that follow."""

    def run(node: EngineParts, caller: Caller, statement: Any) -> str:
        with ExitStack() as held:
            for oid in _named(node, statement):
                held.enter_context(caller.turn(node.turns.altering, oid))
            held.enter_context(node.ddl_lock)
            if publishes and caller.block is None:
                node.capture_before(caller.check)
            return command(node, caller, statement)

    return run


def _named(node: HasCatalog, statement: Any) -> list[Oid]:
    """Return the publications that a statement changes, sorted as the order of their locks.

    A transaction block holds the locks to its end. Others wait for them before they take the DDL
    lock."""
    if isinstance(statement, CreatePublication):
        return []
    names = set(
        statement.names if isinstance(statement, DropPublication) else [statement.name]
    )
    return sorted(
        publication.oid
        for publication in node.catalog.publications()
        if publication.name in names
    )


COMMANDS: Final[Mapping[type, _Command]] = {
    CreatePublication: _in_turn(create_publication),
    AlterPublicationObjects: _in_turn(alter_objects),
    AlterPublicationSet: _in_turn(alter_set),
    AlterPublicationOwner: _in_turn(alter_owner, publishes=False),
    AlterPublicationRename: _in_turn(alter_rename),
    DropPublication: _in_turn(drop_publication),
    CommentOnPublication: _in_turn(comment_on_publication, publishes=False),
}

__all__ = ["COMMANDS"]
