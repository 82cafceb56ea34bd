"""``parse``: turns the text of one statement into a value.

Comes in: one statement (from ``parse_string``). Goes out: a ``ParsedStatement``. The
statements that a node executes from its own grammar (subscriptions, publications, schemas, tables,
indexes, roles, COPY, VACUUM, VERIFY, REPAIR, WAIT FOR) are parsed whole. Of EXPLAIN, the options
are parsed. Any other statement is read only up to the words that identify its command.

Sources: gram.y, stmt; src/include/tcop/cmdtaglist.h for the names of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError, UsageError
from wal2lake.sql.grammar import pgparse
from wal2lake.sql.grammar.access import AccessStatement
from wal2lake.sql.grammar.access.grants import alter_owner, grant, revoke
from wal2lake.sql.grammar.access.roles import alter_role, create_role, drop_role
from wal2lake.sql.grammar.altering.alterstatements import AlterTableStatement
from wal2lake.sql.grammar.altering.parsing import alter_table
from wal2lake.sql.grammar.copying import CopyFrom, CopyTo, copy
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.explaining import Explain, explain
from wal2lake.sql.grammar.indexing import (
    IndexStatement,
    alter_index,
    create_index,
    create_unique_index,
    drop_index,
)
from wal2lake.sql.grammar.lexer import (
    StatementText,
    Token,
    TokenKind,
    syntax_error,
    tokens,
)
from wal2lake.sql.grammar.maintenance import (
    RepairTables,
    VacuumTables,
    VerifyTables,
    WaitForLsn,
    repair_statement,
    vacuum_statement,
    verify_statement,
    wait_statement,
)
from wal2lake.sql.grammar.publishing.parsing import (
    alter_publication,
    comment_on_publication,
    create_publication,
    drop_publication,
)
from wal2lake.sql.grammar.publishing.publicationstatements import PublicationStatement
from wal2lake.sql.grammar.statements import CommandKind, OtherStatement, Statement
from wal2lake.sql.grammar.subscription import (
    alter_subscription,
    comment_on_subscription,
    create_subscription,
    drop_subscription,
)
from wal2lake.sql.grammar.table import (
    create_schema,
    create_table,
    drop_schema,
    drop_table,
    truncate,
)
from wal2lake.sql.grammar.tableas import CreateTableAs, select_into

ParsedStatement = (
    Statement
    | AlterTableStatement
    | AccessStatement
    | PublicationStatement
    | CopyTo
    | CopyFrom
    | CreateTableAs
    | Explain
    | IndexStatement
    | VacuumTables
    | VerifyTables
    | RepairTables
    | WaitForLsn
)

_PARSERS: Final[
    dict[
        tuple[str, ...],
        Callable[[TokenCursor], ParsedStatement],
    ]
] = {
    ("create", "subscription"): create_subscription,
    ("alter", "subscription"): alter_subscription,
    ("drop", "subscription"): drop_subscription,
    ("comment", "on", "subscription"): comment_on_subscription,
    ("create", "publication"): create_publication,
    ("alter", "publication"): alter_publication,
    ("drop", "publication"): drop_publication,
    ("comment", "on", "publication"): comment_on_publication,
    ("create", "schema"): create_schema,
    ("drop", "schema"): drop_schema,
    ("create", "table"): create_table,
    ("drop", "table"): drop_table,
    ("create", "index"): create_index,
    ("create", "unique"): create_unique_index,
    ("drop", "index"): drop_index,
    ("alter", "index"): alter_index,
    ("truncate",): truncate,
    ("copy",): copy,
    ("explain",): explain,
    ("vacuum",): vacuum_statement,
    ("verify",): verify_statement,
    ("repair",): repair_statement,
    ("wait",): wait_statement,
    ("alter", "schema"): alter_owner,
    ("alter", "table"): alter_table,
    ("drop", "role"): drop_role,
    ("drop", "user"): drop_role,
    ("drop", "group"): drop_role,
    ("grant",): grant,
    ("revoke",): revoke,
    **{
        ("create", word): create_role(word.upper())
        for word in ("role", "user", "group")
    },
    **{("alter", word): alter_role(word.upper()) for word in ("role", "user", "group")},
}

_COMMENTS: Final = (
    ("comment", "on", "subscription"),
    ("comment", "on", "publication"),
)

_OTHER_COMMANDS: Final = {
    "select": CommandKind.SELECT,
    "values": CommandKind.VALUES,
    "table": CommandKind.TABLE,
    "insert": CommandKind.INSERT,
    "update": CommandKind.UPDATE,
    "delete": CommandKind.DELETE,
    "merge": CommandKind.MERGE,
    "begin": CommandKind.BEGIN,
    "start": CommandKind.START_TRANSACTION,
    "commit": CommandKind.COMMIT,
    "end": CommandKind.COMMIT,
    "rollback": CommandKind.ROLLBACK,
    "abort": CommandKind.ROLLBACK,
    "savepoint": CommandKind.SAVEPOINT,
    "release": CommandKind.RELEASE,
    "set": CommandKind.SET,
    "show": CommandKind.SHOW,
    "reset": CommandKind.RESET,
    "discard": CommandKind.DISCARD,
    "prepare": CommandKind.PREPARE,
    "execute": CommandKind.EXECUTE,
    "deallocate": CommandKind.DEALLOCATE,
    "declare": CommandKind.DECLARE,
    "fetch": CommandKind.FETCH,
    "move": CommandKind.MOVE,
    "close": CommandKind.CLOSE,
    "comment": CommandKind.COMMENT,
    "listen": CommandKind.LISTEN,
    "notify": CommandKind.NOTIFY,
    "unlisten": CommandKind.UNLISTEN,
    "lock": CommandKind.LOCK,
}

_UNSUPPORTED_COMMANDS: Final = {
    "analyze": "ANALYZE",
    "analyse": "ANALYZE",
    "call": "CALL",
    "checkpoint": "CHECKPOINT",
    "cluster": "CLUSTER",
    "do": "DO",
    "import": "IMPORT FOREIGN SCHEMA",
    "load": "LOAD",
    "reassign": "REASSIGN OWNED",
    "refresh": "REFRESH MATERIALIZED VIEW",
    "reindex": "REINDEX",
    "security": "SECURITY LABEL",
}

_OBJECT_KINDS: Final = (
    "access method",
    "aggregate",
    "cast",
    "collation",
    "constraint trigger",
    "conversion",
    "database",
    "default conversion",
    "default privileges",
    "domain",
    "event trigger",
    "extension",
    "foreign data wrapper",
    "foreign table",
    "function",
    "group",
    "index",
    "language",
    "large object",
    "materialized view",
    "operator class",
    "operator family",
    "operator",
    "owned",
    "policy",
    "procedure",
    "role",
    "routine",
    "rule",
    "schema",
    "sequence",
    "server",
    "statistics",
    "system",
    "table",
    "tablespace",
    "text search configuration",
    "text search dictionary",
    "text search parser",
    "text search template",
    "transform",
    "trigger",
    "type",
    "unique index",
    "user mapping",
    "user",
    "view",
)
"""The kinds of objects that CREATE, ALTER and DROP may name.

If one name begins another, then the longer name comes first.
"""

_TABLE_KINDS: Final = {
    "temp": "temporary tables",
    "temporary": "temporary tables",
    "local": "temporary tables",
    "global": "temporary tables",
    "unlogged": "unlogged tables",
}

_LEADING_TOKENS: Final = 6
"""The tokens that identify any command: CREATE OR REPLACE TEXT SEARCH CONFIGURATION."""


def parse_string(text: str) -> tuple[StatementText, ...]:
    """Return the statements of a query string, without empty ones.

    Raises the errors of PostgreSQL's grammar, or of ours for a statement that is none of
    PostgreSQL's, with the position in the string.
    """
    statements = pgparse.parse_string(text)
    for statement in statements:
        if pgparse.is_own(statement.text):
            _check_own(statement)
    return statements


def _check_own(statement: StatementText) -> None:
    try:
        parse(statement.text)
    except SqlSyntaxError as error:
        if error.position:
            error.position += statement.offset
        raise
    except UsageError:
        # As all but syntax errors, it is reported when the statement's turn comes.
        pass


def parse(text: str) -> ParsedStatement:
    """Parse one statement; raises SqlSyntaxError, or 0A000 for an unsupported clause."""
    lead = list(islice(tokens(text), _LEADING_TOKENS))
    first = lead[0]
    if first.is_mark("("):
        return OtherStatement(CommandKind.SELECT, text, "SELECT")
    if first.kind is not TokenKind.WORD:
        raise _unexpected(text, first)
    word = first.value
    if word in ("create", "alter", "drop"):
        return _definition(text, lead)
    for words in ((word,), *_COMMENTS):
        if words in _PARSERS and all(
            token.is_word(part) for token, part in zip(lead, words, strict=False)
        ):
            return _parse_whole(text, words)
    if word == "with":
        word = _verb_behind_with(text)
    if word in _OTHER_COMMANDS:
        kind = _OTHER_COMMANDS[word]
        into = select_into(text) if kind is CommandKind.SELECT else None
        return into or OtherStatement(kind, text, kind.value)
    if word in _UNSUPPORTED_COMMANDS:
        return OtherStatement(
            CommandKind.UNSUPPORTED, text, _UNSUPPORTED_COMMANDS[word]
        )
    raise _unexpected(text, first)


def _parse_whole(text: str, words: tuple[str, ...]) -> ParsedStatement:
    cursor = TokenCursor(text)
    cursor.expect(*words)
    return _PARSERS[words](cursor)


def _definition(text: str, lead: list[Token]) -> ParsedStatement:
    """Parse a statement that begins with CREATE, ALTER or DROP."""
    verb = lead[0].value
    second = lead[1]
    mapping = second.is_word("user") and lead[2].is_word("mapping")
    if (
        (verb, second.value) in _PARSERS
        and second.kind is TokenKind.WORD
        and not mapping
    ):
        return _parse_whole(text, (verb, second.value))
    index = 1
    if verb == "create":
        if second.is_word("or") and lead[2].is_word("replace"):
            index = 3
        if index == 1 and second.is_word(*_TABLE_KINDS):
            kinds = [t for t in lead[2:4] if t.is_word("table")]
            if kinds:
                raise FeatureNotSupportedError(
                    f"{_TABLE_KINDS[second.value]} are not supported"
                )
            index = 2
        while index < len(lead) and lead[index].is_word(
            "recursive", "trusted", "procedural"
        ):
            index += 1
    object_kind = _object_kind(lead, index)
    if object_kind is None or (verb, object_kind, index) == ("create", "table", 3):
        raise _unexpected(text, lead[min(index, len(lead) - 1)])
    return OtherStatement(
        CommandKind.UNSUPPORTED, text, f"{verb} {object_kind}".upper()
    )


def _object_kind(lead: list[Token], index: int) -> str | None:
    for name in _OBJECT_KINDS:
        words = name.split()
        if len(lead) >= index + len(words) and all(
            lead[index + i].is_word(word) for i, word in enumerate(words)
        ):
            return name
    return None


def _verb_behind_with(text: str) -> str:
    depth = 0
    for token in tokens(text):
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.is_word(
            "select", "insert", "update", "delete", "merge", "values", "table"
        ):
            return token.value
    return "select"


def _unexpected(text: str, token: Token) -> SqlSyntaxError:
    start = len(text) if token.kind is TokenKind.END else token.start
    return syntax_error("syntax error", start, token.text)
