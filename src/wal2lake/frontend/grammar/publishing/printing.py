"""Prints statements about publications as text that parses to the same value.

Comes in: a statement value of ``publishing.statements``. Goes out: SQL. Called by
``grammar.printing``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from wal2lake.frontend.grammar.publishing.statements import (
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
from wal2lake.frontend.grammar.quoting import quote_literal
from wal2lake.frontend.grammar.statements import Option, RoleName
from wal2lake.pgtypes.keywords import quote_identifier


def publication_sql(
    statement: PublicationStatement,
    definition: Callable[[Sequence[Option]], str],
    role: Callable[[RoleName], str],
) -> str:
    """The statement's text; the callables print a list of options and a role."""
    if isinstance(statement, DropPublication):
        names = ", ".join(quote_identifier(name) for name in statement.names)
        return f"DROP PUBLICATION {'IF EXISTS ' if statement.if_exists else ''}{names}"
    name = quote_identifier(statement.name)
    match statement:
        case CreatePublication():
            what = " FOR ALL TABLES" if statement.all_tables else ""
            if statement.objects:
                what = f" FOR {_objects(statement.objects)}"
            options = statement.options
            with_ = f" WITH {definition(options)}" if options else ""
            return f"CREATE PUBLICATION {name}{what}{with_}"
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
    return ", ".join(_object(one) for one in objects)


def _object(one: PublicationObject) -> str:
    match one:
        case PublicationSchema():
            name = "CURRENT_SCHEMA" if one.name is None else quote_identifier(one.name)
            return f"TABLES IN SCHEMA {name}"
        case PublicationTable():
            schema = one.name.schema
            text = "TABLE " + ("ONLY " if one.only else "")
            text += "" if schema is None else quote_identifier(schema) + "."
            text += quote_identifier(one.name.name)
            if one.columns is not None:
                text += f" ({', '.join(quote_identifier(c) for c in one.columns)})"
            if one.where is not None:
                text += f" WHERE ({one.where.text})"
            return text
