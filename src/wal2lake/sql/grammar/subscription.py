"""Parses CREATE, ALTER, DROP and COMMENT ON SUBSCRIPTION.

Comes in: a cursor behind the words that identify the command. Goes out: a statement value. The
grammar is PostgreSQL 18's and complete. As in PostgreSQL, the grammar accepts any option;
``options`` checks which options exist and what their values may be.

Source: gram.y, CreateSubscriptionStmt, AlterSubscriptionStmt, DropSubscriptionStmt,
definition, def_arg, CommentStmt.
"""

from __future__ import annotations

from typing import Final

from wal2lake.pgtypes.keywords import COLUMN_NAME, RESERVED
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind
from wal2lake.sql.grammar.statements import (
    AlterSubscription,
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionPublication,
    AlterSubscriptionRefresh,
    AlterSubscriptionRename,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
    CommentOnSubscription,
    CreateSubscription,
    DropSubscription,
    OptionValue,
    PublicationChange,
    StatementOption,
    ValueKind,
)

# Type names that the grammar spells itself, as TypeNameToString prints them.
_TYPE_KEYWORDS: Final = {
    "bigint": "int8",
    "bit": "bit",
    "boolean": "bool",
    "char": "bpchar",
    "character": "bpchar",
    "dec": "numeric",
    "decimal": "numeric",
    "float": "float8",
    "int": "int4",
    "integer": "int4",
    "interval": "interval",
    "json": "json",
    "nchar": "bpchar",
    "numeric": "numeric",
    "real": "float4",
    "smallint": "int2",
    "time": "time",
    "timestamp": "timestamp",
    "varchar": "varchar",
}


def create_subscription(cursor: TokenCursor) -> CreateSubscription:
    """CREATE SUBSCRIPTION name CONNECTION '...' PUBLICATION list [WITH (...)]."""
    name = cursor.name()
    cursor.expect("connection")
    conninfo = cursor.string()
    cursor.expect("publication")
    publications = cursor.commas(cursor.name)
    options = with_options(cursor)
    cursor.expect_end()
    return CreateSubscription(name, conninfo, publications, options)


def alter_subscription(cursor: TokenCursor) -> AlterSubscription:
    """ALTER SUBSCRIPTION name ..., all nine forms."""
    name = cursor.name()
    statement = _alteration(cursor, name)
    cursor.expect_end()
    return statement


def comment_on_subscription(cursor: TokenCursor) -> CommentOnSubscription:
    """COMMENT ON SUBSCRIPTION name IS '...' | NULL."""
    name = cursor.name()
    cursor.expect("is")
    text = None if cursor.take("null") else cursor.string()
    cursor.expect_end()
    return CommentOnSubscription(name, text)


def drop_subscription(cursor: TokenCursor) -> DropSubscription:
    """DROP SUBSCRIPTION [IF EXISTS] name [CASCADE | RESTRICT]."""
    if_exists = cursor.if_exists()
    name = cursor.name()
    cascade = cursor.cascade()
    cursor.expect_end()
    return DropSubscription(name, if_exists, cascade)


def _alteration(cursor: TokenCursor, name: str) -> AlterSubscription:
    if cursor.take("enable"):
        return AlterSubscriptionEnabled(name, True)
    if cursor.take("disable"):
        return AlterSubscriptionEnabled(name, False)
    if cursor.take("connection"):
        return AlterSubscriptionConnection(name, cursor.string())
    if cursor.take("refresh"):
        cursor.expect("publication")
        return AlterSubscriptionRefresh(name, with_options(cursor))
    if cursor.take("skip"):
        return AlterSubscriptionSkip(name, definition(cursor))
    if cursor.take("owner"):
        cursor.expect("to")
        return AlterSubscriptionOwner(name, cursor.role())
    if cursor.take("rename"):
        cursor.expect("to")
        return AlterSubscriptionRename(name, cursor.name())
    if cursor.token.is_word("set") and cursor.ahead(1).is_mark("("):
        cursor.next()
        return AlterSubscriptionSet(name, definition(cursor))
    for change in PublicationChange:
        if cursor.take(change.value.lower()):
            cursor.expect("publication")
            publications = cursor.commas(cursor.name)
            return AlterSubscriptionPublication(
                name, change, publications, with_options(cursor)
            )
    raise cursor.unexpected()


def with_options(cursor: TokenCursor) -> tuple[StatementOption, ...]:
    """[WITH (name [= value], ...)]."""
    return definition(cursor) if cursor.take("with") else ()


def definition(cursor: TokenCursor) -> tuple[StatementOption, ...]:
    """definition: a list of options in parentheses."""
    cursor.expect_mark("(")
    options = cursor.commas(lambda: _option(cursor))
    cursor.expect_mark(")")
    return options


def _option(cursor: TokenCursor) -> StatementOption:
    position = cursor.token.start + 1
    name = cursor.label()
    value = _value(cursor) if cursor.take_mark("=") else None
    return StatementOption(name, value, position)


def _value(cursor: TokenCursor) -> OptionValue:
    token = cursor.token
    match token.kind:
        case TokenKind.STRING:
            return OptionValue(ValueKind.STRING, cursor.next().value)
        case TokenKind.INTEGER | TokenKind.FLOAT:
            return OptionValue(ValueKind.NUMBER, _number(cursor.next().value))
        case TokenKind.OPERATOR:
            sign = cursor.next().value
            number = cursor.token.kind in (TokenKind.INTEGER, TokenKind.FLOAT)
            if sign in ("+", "-") and number:
                text = _number(cursor.next().value)
                return OptionValue(
                    ValueKind.NUMBER, text if sign == "+" else "-" + text
                )
            return OptionValue(ValueKind.OPERATOR, sign)
        case TokenKind.WORD | TokenKind.QUOTED:
            return OptionValue(ValueKind.WORD, _word(cursor))
        case _:
            raise cursor.unexpected()


def _number(text: str) -> str:
    """A number as PostgreSQL passes it to an option: decimal, without underscores."""
    digits = text.replace("_", "")
    return str(int(digits, 0)) if digits[:2].lower() in ("0x", "0o", "0b") else digits


def _word(cursor: TokenCursor) -> str:
    """A reserved word, NONE, or a type's name as TypeNameToString() prints it."""
    token = cursor.next()
    if token.kind is TokenKind.WORD:
        if token.value == "double" and cursor.take("precision"):
            return "pg_catalog.float8"
        if token.value in RESERVED or token.value == "none":
            return token.value
        if token.value in _TYPE_KEYWORDS:
            return "pg_catalog." + _TYPE_KEYWORDS[token.value]
        if token.value in COLUMN_NAME and token.value != "setof":
            raise cursor.unexpected(token)
    text = token.value
    while cursor.take_mark("."):
        text += "." + cursor.label()
    while cursor.take_mark("["):
        cursor.expect_mark("]")
        text += "[]"
    return text
