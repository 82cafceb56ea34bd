"""The statements that a node understands itself: pure parsing and printing.

Takes: the text of a statement. Gives: frozen values (``parse``), their text again
(``to_sql``), a query string's pieces (``split_statements``), checked options of
subscriptions (``subscription_options``). Owns: no state. Never: does I/O, knows the
catalog, reads queries beyond their first words.

    lexer, quoting             SQL's lexical rules: tokens, statements, names and constants
    parser                     which statement it is; start here
    cursor                     tokens, taken by gram.y's rules
    subscription, table        each statement's own rules
    sequences                  serial and identity columns
    access/                    roles, privileges, owners
    publishing/                publications, and expressions of row filters
    statements, printing       the values, and their text again
    options                    what the options of a subscription may be
"""

from wal2lake.frontend.grammar.lexer import StatementText, split_statements
from wal2lake.frontend.grammar.options import (
    OptionSet,
    SubscriptionOptions,
    check_publications,
    check_slot_name,
    subscription_options,
)
from wal2lake.frontend.grammar.parser import parse
from wal2lake.frontend.grammar.printing import to_sql
from wal2lake.frontend.grammar.quoting import fold, quote_literal
from wal2lake.pgtypes.keywords import quote_identifier

__all__ = [
    "OptionSet",
    "StatementText",
    "SubscriptionOptions",
    "check_publications",
    "check_slot_name",
    "fold",
    "parse",
    "quote_identifier",
    "quote_literal",
    "split_statements",
    "subscription_options",
    "to_sql",
]
