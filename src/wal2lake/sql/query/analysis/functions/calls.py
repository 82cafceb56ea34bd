"""Translates functions by their name and number of arguments.

Comes in: a name and the operands. Goes out: an operand. Called by ``rules``. ``OWN_NAMES`` are the
names that sqlglot must not parse as functions of other systems, so that they stay calls by name.

Source: PostgreSQL manual, chapter 9; pg_proc.dat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from wal2lake.sql.query.analysis.functions import (
    arithmetic,
    arrays,
    dates,
    formats,
    json,
    patterns,
    strings,
)
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Operand

Call = Callable[[str, Sequence[Operand], str], Operand]


def call(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate one call; raises 0A000 if no rule has this name and number of arguments."""
    rule = _RULES.get((name, len(operands))) or _RULES.get((name, None))
    if rule is None:
        raise t.refuse(f"function {name}()")
    for operand in operands:
        if not operand.type.known:
            return Operand(operand.node, t.NOTHING)
    return rule(name, operands, zone)


_RULES: Final[Mapping[tuple[str, int | None], Call]] = {
    ("sqrt", 1): arithmetic.square_root,
    ("degrees", 1): arithmetic.angle,
    ("radians", 1): arithmetic.angle,
    ("pi", 0): arithmetic.pi,
    ("sign", 1): arithmetic.sign,
    ("div", 2): arithmetic.whole_quotient,
    ("to_hex", 1): arithmetic.to_hex,
    ("ascii", 1): strings.ascii_code,
    ("chr", 1): strings.character,
    ("initcap", 1): strings.initcap,
    ("concat_ws", None): strings.concat_ws,
    ("format", None): strings.formatted,
    ("translate", 3): strings.translate,
    ("octet_length", 1): strings.octets,
    ("left", 2): strings.end_of,
    ("right", 2): strings.end_of,
    ("quote_literal", 1): strings.quoted,
    ("quote_nullable", 1): strings.quoted,
    ("quote_ident", 1): strings.quoted,
    ("encode", 2): strings.encode,
    ("decode", 2): strings.decode,
    ("sha256", 1): strings.sha256,
    ("gen_random_uuid", 0): strings.random_uuid,
    ("regexp_replace", 3): patterns.replace,
    ("regexp_replace", 4): patterns.replace,
    ("regexp_match", 2): patterns.match,
    ("regexp_like", 2): patterns.like,
    ("regexp_split_to_array", 2): patterns.split,
    ("array_length", 2): arrays.length,
    ("cardinality", 1): arrays.cardinality,
    ("array_position", 2): arrays.position,
    ("string_to_array", 2): arrays.of_string,
    ("string_to_array", 3): arrays.of_string,
    ("array_to_string", 2): arrays.to_string,
    ("array_to_string", 3): arrays.to_string,
    ("array_append", 2): arrays.append,
    ("array_cat", 2): arrays.append,
    ("unnest", 1): arrays.unnest,
    ("to_char", 2): formats.to_char,
    ("to_date", 2): formats.to_date,
    ("to_timestamp", 2): formats.to_timestamp,
    ("to_timestamp", 1): dates.of_seconds,
    ("age", 1): dates.age,
    ("age", 2): dates.age,
    ("make_date", 3): dates.make_date,
    ("date_part", 2): dates.date_part,
    ("jsonb_typeof", 1): json.type_of,
    ("json_typeof", 1): json.type_of,
    ("jsonb_array_length", 1): json.array_length,
    ("json_array_length", 1): json.array_length,
    ("jsonb_array_elements", 1): json.elements,
    ("jsonb_array_elements_text", 1): json.elements,
    ("json_array_elements", 1): json.elements,
    ("json_array_elements_text", 1): json.elements,
    ("jsonb_object_keys", 1): json.object_keys,
    ("json_object_keys", 1): json.object_keys,
    ("jsonb_extract_path", None): json.path_of,
    ("jsonb_extract_path_text", None): json.path_of,
    ("json_extract_path", None): json.path_of,
    ("json_extract_path_text", None): json.path_of,
}

OWN_NAMES: Final = frozenset(name.upper() for name, _ in _RULES)
GENERATORS: Final = frozenset(
    (
        "unnest",
        "jsonb_array_elements",
        "jsonb_array_elements_text",
        "json_array_elements",
        "json_array_elements_text",
        "jsonb_object_keys",
        "json_object_keys",
    )
)
"""Functions that return a set of rows."""
