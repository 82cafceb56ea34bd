"""PostgreSQL 18's keywords that are not free to be names.

Comes in: nothing, or a name. Goes out: three sets of words; the name, in quotes where it needs
them. An identifier that is in none of them
may name anything; where a word may stand is the rule of gram.y's ColId, type_function_name
and ColLabel.

Source: src/include/parser/kwlist.h, as pg_get_keywords() lists it.
"""

from __future__ import annotations

import re
from typing import Final

_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*\Z")


def words(text: str) -> frozenset[str]:
    """Those between blanks."""
    return frozenset(text.split())


RESERVED: Final = words(
    """
    all analyse analyze and any array as asc asymmetric both case cast check collate
    column constraint create current_catalog current_date current_role current_time
    current_timestamp current_user default deferrable desc distinct do else end except
    false fetch for foreign from grant group having in initially intersect into lateral
    leading limit localtime localtimestamp not null offset on only or order placing
    primary references returning select session_user some symmetric system_user table
    then to trailing true union unique user using variadic when where window with
    """
)
"""Never a name without quotes, except as a label."""

TYPE_OR_FUNCTION: Final = words(
    """
    authorization binary collation concurrently cross current_schema freeze full ilike
    inner is isnull join left like natural notnull outer overlaps right similar
    tablesample verbose
    """
)
"""May name a type or a function, no column or table."""

COLUMN_NAME: Final = words(
    """
    between bigint bit boolean char character coalesce dec decimal exists extract float
    greatest grouping inout int integer interval json json_array json_arrayagg
    json_exists json_object json_objectagg json_query json_scalar json_serialize
    json_table json_value least merge_action national nchar none normalize nullif
    numeric out overlay position precision real row setof smallint substring time
    timestamp treat trim values varchar xmlattributes xmlconcat xmlelement xmlexists
    xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
    """
)
"""May name a column or a table, no function or type."""

NOT_COLUMN_NAMES: Final = RESERVED | TYPE_OR_FUNCTION
"""What ColId refuses: the words that a name must be quoted for."""

MUST_QUOTE: Final = RESERVED | TYPE_OR_FUNCTION | COLUMN_NAME
"""What quote_ident() quotes: every keyword that is not unreserved."""


def quote_identifier(name: str) -> str:
    """quote_ident(): quoted only where it must be."""
    if _PLAIN_NAME.match(name) and name not in MUST_QUOTE:
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A string constant, standard_conforming_strings on or off."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted
