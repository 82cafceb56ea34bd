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

COMMANDS: Final[Mapping[type, Callable[[Node, Caller, Any], str]]] = {
    CreatePublication: create_publication,
    AlterPublicationObjects: alter_objects,
    AlterPublicationSet: alter_set,
    AlterPublicationOwner: alter_owner,
    AlterPublicationRename: alter_rename,
    DropPublication: drop_publication,
    CommentOnPublication: comment_on_publication,
}

__all__ = ["COMMANDS"]
