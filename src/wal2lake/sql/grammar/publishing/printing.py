"""Prints statements about publications as text that parses to the same value.

Comes in: a statement value of ``publishing.publicationstatements``. Goes out: SQL. Called by
``grammar.printing``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.grammar.publishing.publicationstatements import (
    AlterPublicationObjects,
    AlterPublicationOwner,
    AlterPublicationRename,
    AlterPublicationSet,
    CommentOnPublication,
    CreatePublication,
    DropPublication,
    PublicationObject,
    PublicationSchema,
    PublicationStatement,
    PublicationTable,
)
from wal2lake.sql.grammar.quoting import quote_literal
from wal2lake.sql.grammar.statements import RoleName, StatementOption


def publication_sql(
    statement: PublicationStatement,
    definition: Callable[[Sequence[StatementOption]], str],
    role: Callable[[RoleName], str],
) -> str:
    """The statement's text; the callables print a list of options and a role."""
    if isinstance(statement, DropPublication):
        names = ", ".join(quote_identifier(name) for name in statement.names)
        return f"DROP PUBLICATION {'IF EXISTS ' if statement.if_exists else ''}{names}"
    name = quote_identifier(statement.name)
    match statement:
        case CreatePublication():
            objects_clause = " FOR ALL TABLES" if statement.all_tables else ""
            if statement.objects:
                objects_clause = f" FOR {_objects(statement.objects)}"
            options = statement.options
            with_ = f" WITH {definition(options)}" if options else ""
            return f"CREATE PUBLICATION {name}{objects_clause}{with_}"
        case AlterPublicationObjects():
            objects = _objects(statement.objects)
            return f"ALTER PUBLICATION {name} {statement.change.value} {objects}"
        case AlterPublicationSet():
            return f"ALTER PUBLICATION {name} SET {definition(statement.options)}"
        case AlterPublicationOwner():
            return f"ALTER PUBLICATION {name} OWNER TO {role(statement.owner)}"
        case AlterPublicationRename():
            new_name = quote_identifier(statement.new_name)
            return f"ALTER PUBLICATION {name} RENAME TO {new_name}"
        case CommentOnPublication():
            text = "NULL"
            if statement.text is not None:
                text = quote_literal(statement.text).lstrip()
            return f"COMMENT ON PUBLICATION {name} IS {text}"
        case _:
            assert_never(statement)


def _objects(objects: Sequence[PublicationObject]) -> str:
    return ", ".join(_object(pub_object) for pub_object in objects)


def _object(pub_object: PublicationObject) -> str:
    match pub_object:
        case PublicationSchema():
            name = (
                "CURRENT_SCHEMA"
                if pub_object.name is None
                else quote_identifier(pub_object.name)
            )
            return f"TABLES IN SCHEMA {name}"
        case PublicationTable():
            schema = pub_object.name.schema
            text = "TABLE " + ("ONLY " if pub_object.only else "")
            text += "" if schema is None else quote_identifier(schema) + "."
            text += quote_identifier(pub_object.name.name)
            if pub_object.columns is not None:
                text += (
                    f" ({', '.join(quote_identifier(c) for c in pub_object.columns)})"
                )
            if pub_object.where is not None:
                text += f" WHERE ({pub_object.where.text})"
            return text
