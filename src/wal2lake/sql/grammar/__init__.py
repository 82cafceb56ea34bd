"""Parses and prints the statements that a node executes from its own grammar.

Takes: a query string, or the text of a statement. Gives: the statements of a string
(``parse_string``), frozen statement values (``parse``), their SQL text (``to_sql``), checked
subscription options (``subscription_options``). Owns: no state. Never: does I/O, knows the catalog.

    pgparse/                   PostgreSQL's own grammar: query strings and their syntax errors
    lexer, quoting             SQL's lexical rules: tokens, statements, names and constants
    parser                     finds out which statement a text is; start here
    remembered                 keeps results for texts that clients repeat
    cursor                     takes tokens by the rules of gram.y
    subscription, table        the rules of each statement
    constraints/               column sources, sequences, CHECK, deferral, generated columns
    altering/                  ALTER TABLE
    access/                    roles, privileges, owners
    publishing/                publications and the expressions of row filters
    copying/                   COPY ... TO STDOUT
    maintenance/               VACUUM
    statements, printing       the statement values and their SQL text
    options                    subscription options and storage parameters, checked
"""

from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.grammar.lexer import StatementText, split_statements
from wal2lake.sql.grammar.options import (
    OptionSet,
    SubscriptionOptions,
    check_publications,
    check_slot_name,
    subscription_options,
)
from wal2lake.sql.grammar.parser import parse, parse_string
from wal2lake.sql.grammar.printing import to_sql
from wal2lake.sql.grammar.quoting import fold, quote_literal

__all__ = [
    "OptionSet",
    "StatementText",
    "SubscriptionOptions",
    "check_publications",
    "check_slot_name",
    "fold",
    "parse",
    "parse_string",
    "quote_identifier",
    "quote_literal",
    "split_statements",
    "subscription_options",
    "to_sql",
]
