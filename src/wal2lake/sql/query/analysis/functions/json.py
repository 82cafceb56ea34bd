"""Translates operators and functions of json and jsonb.

Comes in: operands. Goes out: an operand. Called by ``rules`` and ``calls``.

Values are text: canonical text for jsonb, the written text for json. Spark's JSON functions parse a
value and print it in another form: 1.50 becomes 1.5, and blanks and duplicate keys are lost. The
expressions of this module split the text into tokens and find the members of the outermost object
or array among them; a member is a substring of the text. This is slower than Spark's
get_json_object(), and exact.

Source: PostgreSQL manual 8.14, 9.16; jsonfuncs.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.sql.query.analysis.functions.strings import (
    constant_number,
    constant_text,
    no_function,
)
from wal2lake.sql.query.values import casts, literals
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, plain

_TEXT: Final = plain(t.TEXT)
_ITEM: Final = "wal2lake_item"

_TOKEN: Final = r"""'\\\\.|"|[\\[\\]{},:]|\\s+|[^\\\\"\\[\\]{},:\\s]+'"""
_STEP: Final = (
    # p: position of the token; d: depth; s: inside a string; b, e: begin and end of the
    # value; k, l: begin and end of the key; o: the members found so far.
    "named_struct('p', a.p + length(t),"
    " 'd', case when a.s then a.d when t in ('{', '[') then a.d + 1"
    " when t in ('}', ']') then a.d - 1 else a.d end,"
    """ 's', if(t = '"', not a.s, a.s),"""
    " 'b', case when a.d = 1 and not a.s and t in (',', ':') then 0"
    " when a.d >= 1 and a.b = 0 and (a.s or not t rlike '^\\\\s')"
    " and not (a.d = 1 and t in ('}', ']')) then a.p else a.b end,"
    " 'e', case when a.d >= 1 and (a.s or a.d > 1 or not (t in (',', ':', '}', ']')"
    " or t rlike '^\\\\s')) then a.p + length(t) else a.e end,"
    " 'k', if(a.d = 1 and not a.s and t = ':', a.b, if(a.d = 1 and not a.s and t = ',',"
    " 0, a.k)),"
    " 'l', if(a.d = 1 and not a.s and t = ':', a.e, a.l),"
    " 'o', if(a.d = 1 and not a.s and a.b > 0 and t in (',', '}', ']'),"
    " concat(a.o, array(named_struct('k', a.k, 'l', a.l, 'b', a.b, 'e', a.e))), a.o))"
)
_START: Final = (
    "named_struct('p', 1, 'd', 0, 's', false, 'b', 0, 'e', 0, 'k', 0, 'l', 0, 'o',"
    " cast(array() as array<struct<k: int, l: int, b: int, e: int>>))"
)
_TOKENS: Final = f"regexp_extract_all(:j, {_TOKEN}, 0)"
_MEMBERS: Final = f"aggregate({_TOKENS}, {_START}, (a, t) -> {_STEP}, a -> a.o)"
"""The members of :j, an object or array: positions of the key (k to l) and value (b to e)."""

_VALUE: Final = "substring(:j, m.b, m.e - m.b)"
_KEY: Final = "substring(:j, m.k, m.l - m.k)"
_FIRST: Final = "left(ltrim('\\t\\n\\r ', :j), 1)"


def _json(operand: Operand, name: str) -> Operand:
    if operand.type.oid not in (t.JSON, t.JSONB):
        raise no_function(name, operand.type)
    return operand


def unquoted(node: exp.Expression) -> exp.Expression:
    """The text that ``->>`` gives for a JSON value: a string without quotes, NULL for null."""
    template = (
        """case when :v is null or :v = 'null' then null when left(:v, 1) = '"' then"""
        " from_json(concat('[', :v, ']'), 'array<string>', map('mode', 'FAILFAST'))[0]"
        " else :v end"
    )
    return let(template, v=node)


def _value_of_key(json: Operand, step: str) -> str:
    """The value of a key in the object :j; the last value if the key occurs several times."""
    json_key = literals.constant(_as_string(step), plain(t.JSONB), "UTC").node.name
    key = _KEY
    if json.type.oid == t.JSON:
        # A key may be written with escapes.
        key, json_key = f"from_json(concat('[', {_KEY}, ']'), 'array<string>')[0]", step
    quoted = json_key.replace("\\", "\\\\").replace("'", "\\'")
    member = f"slice(filter({_MEMBERS}, m -> {key} = '{quoted}'), -1, 1)"
    return f"get(transform({member}, m -> {_VALUE}), 0)"


def _value_at_index(place: int) -> str:
    """The value at an index of the array :j; a negative index counts from the end."""
    member = (
        f"slice({_MEMBERS}, {place + 1}, 1)"
        if place >= 0
        else f"if(size({_MEMBERS}) < {-place}, null, slice({_MEMBERS}, {place}, 1))"
    )
    return f"get(transform({member}, m -> {_VALUE}), 0)"


def _as_string(step: str) -> str:
    from_text = step.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{from_text}"'


def arrow(json: Operand, step: Operand, as_text: bool, zone: str) -> Operand:
    """Translate ``->`` and ``->>`` with a constant key or index."""
    _json(json, "->")
    if step.type.oid in t.INTEGERS:
        place = constant_number("->", step)
        # PostgreSQL stores a scalar jsonb as an array of one element.
        is_whole_scalar = json.type.oid == t.JSONB and place in (0, -1)
        scalar = f"when {_FIRST} <> '{{' then :j" if is_whole_scalar else ""
        text = f"case when {_FIRST} = '[' then {_value_at_index(place)} {scalar} end"
    else:
        text = f"if({_FIRST} = '{{', {_value_of_key(json, constant_text('->', step))}, null)"
    node = let(text, j=json.node)
    return _result(json, node, as_text)


def _result(json: Operand, node: exp.Expression, as_text: bool) -> Operand:
    if as_text:
        return Operand(unquoted(node), _TEXT)
    return Operand(node, json.type.computed())


def path(json: Operand, steps: Sequence[str], as_text: bool) -> Operand:
    """Translate ``#>`` and ``#>>``; a step into an array is an index."""
    _json(json, "#>")
    value = json
    for step in steps:
        text = f"when '{{' then {_value_of_key(json, step)}"
        if _is_index(step):
            text += f" when '[' then {_value_at_index(int(step))}"
        node = let(f"case {_FIRST} {text} end", j=value.node)
        value = Operand(node, json.type.computed())
    return _result(json, value.node, as_text)


def _is_index(step: str) -> bool:
    return step.removeprefix("-").isdigit() and step.isascii()


def path_steps(operand: Operand, zone: str) -> list[str]:
    """The constant array on the right of ``#>``."""
    text = operand.node
    if isinstance(text, exp.Literal) and text.is_string:
        operand = casts.settled(operand, plain(1009), zone)
    array = operand.node.this if isinstance(operand.node, exp.Cast) else operand.node
    if not isinstance(array, exp.Array) or not all(
        isinstance(e, exp.Literal) for e in array.expressions
    ):
        raise t.refuse("a path that is not constant")
    return [str(e.name) for e in array.expressions]


def path_of(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate jsonb_extract_path(), json_extract_path() and their _text forms."""
    steps = [constant_text(name, o) for o in operands[1:]]
    return path(_json(operands[0], name), steps, name.endswith("_text"))


def type_of(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate jsonb_typeof() and json_typeof()."""
    json = _json_argument(name, operands[0], zone)
    node = spark(
        f"case {_FIRST} when '{{' then 'object' when '[' then 'array'"
        """ when '"' then 'string' when 't' then 'boolean' when 'f' then 'boolean'"""
        " when 'n' then 'null' else if(:j is null, null, 'number') end",
        j=json.node,
    )
    return Operand(node, _TEXT)


def _json_argument(name: str, operand: Operand, zone: str) -> Operand:
    kind = plain(t.JSONB if name.startswith("jsonb") else t.JSON)
    operand = casts.settled(operand, kind, zone)
    if operand.type.oid != kind.oid:
        raise no_function(name, operand.type)
    return operand


def array_length(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate jsonb_array_length(), which fails with 22023 for a value that is no array."""
    json = _json_argument(name, operands[0], zone)
    scalar = t.failure("22023", "cannot get array length of a scalar")
    not_array = t.failure("22023", "cannot get array length of a non-array")
    node = let(
        f"case when :j is null then null when {_FIRST} = '[' then size({_MEMBERS})"
        f" when {_FIRST} = '{{' then cast({not_array} as int) else cast({scalar} as int) end",
        j=json.node,
    )
    return Operand(node, plain(t.INT4))


def elements(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate jsonb_array_elements() and similar functions, which return rows."""
    json = _json_argument(name, operands[0], zone)
    scalar = t.failure("22023", "cannot extract elements from a scalar")
    not_array = t.failure("22023", "cannot extract elements from an object")
    values = let(
        f"case when :j is null then null when {_FIRST} = '['"
        f" then transform({_MEMBERS}, m -> {_VALUE}) when {_FIRST} = '{{' then"
        f" cast({not_array} as array<string>) else cast({scalar} as array<string>) end",
        j=json.node,
    )
    if not name.endswith("_text"):
        return Operand(spark("explode(:x)", x=values), json.type.computed())
    texts = exp.Transform(
        this=values,
        expression=exp.Lambda(
            this=unquoted(exp.column(_ITEM)), expressions=[exp.to_identifier(_ITEM)]
        ),
    )
    return Operand(spark("explode(:x)", x=texts), _TEXT)


def object_keys(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate jsonb_object_keys() and json_object_keys(), which return rows."""
    json = _json_argument(name, operands[0], zone)
    not_object = t.failure("22023", f"cannot call {name} on an array or a scalar")
    keys = let(
        f"case when :j is null then null when {_FIRST} = '{{'"
        f" then transform({_MEMBERS}, m -> from_json(concat('[', {_KEY}, ']'),"
        f" 'array<string>')[0]) else cast({not_object} as array<string>) end",
        j=json.node,
    )
    return Operand(spark("explode(:x)", x=keys), _TEXT)


def has_key(json: Operand, key: Operand, zone: str) -> Operand:
    """Translate ``jsonb ? text``: a key of an object, or a string in an array."""
    if json.type.oid != t.JSONB:
        raise t.no_operator(json.type, "?", _TEXT)
    key_text = constant_text("?", key)
    quoted = literals.constant(_as_string(key_text), plain(t.JSONB), zone).node.name
    inner = quoted.replace("\\", "\\\\").replace("'", "\\'")
    node = let(
        f"case when :j is null then null when {_FIRST} = '{{'"
        f" then exists({_MEMBERS}, m -> {_KEY} = '{inner}') when {_FIRST} = '['"
        f" then exists({_MEMBERS}, m -> {_VALUE} = '{inner}') else :j = '{inner}' end",
        j=json.node,
    )
    return Operand(node, plain(t.BOOL))
