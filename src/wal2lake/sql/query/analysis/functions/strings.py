"""Translates functions and operators of text.

Comes in: a node, or a name, and its operands. Goes out: an operand. Called by ``rules`` and
``calls``, which have the tables of all rules. Arguments for which Spark's result differs, such as a
position before the first character, are refused.

Source: PostgreSQL manual 9.4, 9.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlglot import exp

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.pgtypes.keywords import MUST_QUOTE
from wal2lake.sql.query.values import casts, output
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, Type, plain

Arguments = dict[str, Any]
_TEXT: Final = plain(t.TEXT)


def constant_number(name: str, operand: Operand) -> int:
    """The value of an integer argument that must be constant; raises 0A000 if it is not."""
    node = operand.node
    sign = 1
    while isinstance(node, (exp.Neg, exp.Paren, exp.Cast)):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    if not isinstance(node, exp.Literal) or not node.name.isdigit():
        raise t.refuse(f"{name}() with a number that is not constant")
    return sign * int(node.name)


def constant_text(name: str, operand: Operand) -> str:
    """The value of a text argument that must be constant; raises 0A000 if it is not."""
    node = operand.node
    while isinstance(node, (exp.Paren, exp.Cast)):
        node = node.this
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise t.refuse(f"{name}() with a text that is not constant")
    return str(node.name)


def no_function(name: str, *kinds: Type) -> UndefinedObjectError:
    """PostgreSQL's error for a function that does not exist with these argument types."""
    return UndefinedObjectError(
        f"function {name}({', '.join(kind.name for kind in kinds)}) does not exist",
        sqlstate="42883",
        hint="No function matches the given name and argument types. You might need to"
        " add explicit type casts.",
    )


def text(name: str, operand: Operand, zone: str) -> exp.Expression:
    """Convert an argument to text; raises 42883 if it is not of a string type."""
    operand = casts.as_known(operand, zone)
    if not operand.type.string:
        raise no_function(name, operand.type)
    return output.text_of(operand, zone)


def textual(name: str, result: Type = _TEXT) -> Callable[..., Operand]:
    """Build the rule of a function of texts that is the same in Spark and PostgreSQL."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        for key, operand in arguments.items():
            if isinstance(operand, Operand):
                node.set(key, text(name, operand, zone))
            elif isinstance(operand, list) and operand:
                raise t.refuse(f"this form of {name}()")
        return Operand(node, result)

    return rule


def md5(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate md5() of text or bytea."""
    operand = casts.as_known(arguments["this"], zone)
    if operand.type.oid != t.BYTEA:
        node.set("this", text("md5", operand, zone))
    return Operand(node, _TEXT)


def length(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate length()."""
    operand = casts.as_known(arguments["this"], zone)
    if operand.type.oid != t.BYTEA:
        node.set("this", text("length", operand, zone))
    return Operand(node, plain(t.INT4))


def counted(name: str, key: str, least: int) -> Callable[..., Operand]:
    """Build the rule of a function of a text and a constant number.

    Spark's function is the same for numbers from ``least`` on; smaller numbers are refused.
    """

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        for name_, operand in arguments.items():
            if not isinstance(operand, Operand):
                continue
            if name_ in (key, "length"):
                if constant_number(name, operand) < least:
                    raise t.refuse(f"{name}() with a number below {least}")
            else:
                node.set(name_, text(name, operand, zone))
        return Operand(node, _TEXT)

    return rule


def substring(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate substring(); positions before the first character are refused."""
    start, length = arguments.get("start"), arguments.get("length")
    node.set("this", text("substring", arguments["this"], zone))
    if start is not None and constant_number("substring", start) < 1:
        raise t.refuse("substring() from a place below 1")
    if length is not None and constant_number("substring", length) < 0:
        raise UsageError("negative substring length not allowed", sqlstate="22011")
    return Operand(node, _TEXT)


def joined(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate ``||`` of texts or bytea."""
    left, right = arguments["this"], arguments["expression"]
    if not any(o.type.string or o.type.oid == t.UNKNOWN for o in (left, right)):
        if left.type.oid == right.type.oid == t.BYTEA:
            return Operand(exp.Paren(this=node), left.type)
        raise t.refuse(f"{left.type.name} || {right.type.name}")
    for key, operand in (("this", left), ("expression", right)):
        if operand.type.element is not None:
            # An untyped literal next to an array would be an array.
            raise t.refuse("|| of an array and text")
        typed = casts.as_known(operand, zone)
        node.set(key, output.text_of(typed, zone))
    return Operand(exp.Paren(this=node), _TEXT)


def concat(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate concat(), which ignores NULLs."""
    items = []
    for operand in arguments["expressions"]:
        typed = casts.as_known(operand, zone)
        items.append(spark("coalesce(:x, '')", x=output.output_of(typed, zone)))
    return Operand(
        spark("concat(:x)", x=items[0])
        if len(items) == 1
        else exp.Anonymous(this="concat", expressions=items),
        _TEXT,
    )


def like(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate LIKE and ILIKE."""
    for key in ("this", "expression"):
        operand = casts.as_known(arguments[key], zone)
        if not operand.type.string:
            raise t.no_operator(operand.type, "~~", _TEXT)
        # A bpchar on the left side keeps its blanks. The right side is text.
        is_pattern = key == "expression"
        node.set(key, output.text_of(operand, zone) if is_pattern else operand.node)
    return Operand(node, plain(t.BOOL))


# ---- by name ---------------------------------------------------------------------------


def ascii_code(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate ascii(): the code point of the first character."""
    value = text(name, operands[0], zone)
    return Operand(spark("ascii(:x)", x=value), plain(t.INT4))


def character(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Compute chr() of a constant; Spark's chr() has only 256 characters."""
    code = constant_number(name, operands[0])
    if code == 0:
        raise UsageError("null character not permitted", sqlstate="54000")
    if not 0 < code <= 0x10FFFF or 0xD800 <= code < 0xE000:
        raise UsageError(
            f"requested character not valid for encoding: {code}", sqlstate="54000"
        )
    return Operand(exp.Literal.string(chr(code)), _TEXT)


def initcap(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate initcap(), for which a word is a run of letters and digits."""
    template = (
        r"array_join(transform(regexp_extract_all(:x, '[\\p{L}\\p{N}]+|[^\\p{L}\\p{N}]+', 0),"
        " w -> concat(upper(left(w, 1)), lower(substring(w, 2)))), '')"
    )
    return Operand(spark(template, x=text(name, operands[0], zone)), _TEXT)


def concat_ws(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate concat_ws(), which ignores NULLs but is NULL for a NULL separator."""
    if len(operands) < 2:
        raise no_function(name, _TEXT)
    items = [text(name, operands[0], zone)]
    items += [output.output_of(casts.as_known(o, zone), zone) for o in operands[1:]]
    return Operand(exp.Anonymous(this="concat_ws", expressions=items), _TEXT)


def translate(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate a call of translate()."""
    a, b, c = (text(name, o, zone) for o in operands)
    return Operand(spark("translate(:a, :b, :c)", a=a, b=b, c=c), _TEXT)


def octets(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate octet_length()."""
    operand = casts.as_known(operands[0], zone)
    node = operand.node
    if operand.type.oid not in (t.BYTEA, t.BPCHAR):
        node = text(name, operand, zone)
    return Operand(spark("octet_length(:x)", x=node), plain(t.INT4))


def end_of(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate left() and right(); a negative number cuts characters at the other end."""
    value = text(name, operands[0], zone)
    number = casts.settled(operands[1], plain(t.INT4), zone)
    if number.type.oid not in (t.INT2, t.INT4):
        raise no_function(name, operands[1].type)
    # For NULL no branch applies, so the result is NULL. The smallest integer has no positive
    # counterpart: PostgreSQL's right() then cuts nothing.
    least = "when :n = -2147483648 then char_length(:x)" if name == "right" else ""
    count = (
        f"case {least} when :n >= 0 then :n"
        " when :n < 0 then greatest(char_length(:x) + :n, 0) end"
    )
    return Operand(let(f"{name}(:x, {count})", x=value, n=number.node), _TEXT)


_SAFE_NAME: Final = r"'^[a-z_][a-z0-9_]*\\z'"


def _identifier(node: exp.Expression) -> exp.Expression:
    words = ", ".join(f"'{word}'" for word in sorted(MUST_QUOTE))
    return let(
        f"if(:x rlike {_SAFE_NAME} and :x not in ({words}), :x,"
        """ concat('"', replace(:x, '"', '""'), '"'))""",
        x=node,
    )


_LITERAL: Final = (
    r"""concat(if(instr(:x, '\\') > 0, 'E', ''), '\'',"""
    r""" replace(replace(:x, '\'', '\'\''), '\\', '\\\\'), '\'')"""
)


def quoted(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate quote_literal(), quote_nullable() and quote_ident()."""
    operand = casts.as_known(operands[0], zone)
    if name == "quote_ident":
        return Operand(_identifier(text(name, operand, zone)), _TEXT)
    literal = let(_LITERAL, x=output.text_of(operand, zone))
    if name == "quote_nullable":
        literal = spark("coalesce(:x, 'NULL')", x=literal)
    return Operand(literal, _TEXT)


_SPECIFIER: Final = re.compile(r"%(?:(%)|(?:(\d+)\$)?([sIL]))")


def formatted(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate format() with a constant format of %s, %I, %L and %%."""
    if not operands:
        raise no_function(name, _TEXT)
    pattern = constant_text(name, operands[0])
    values = [casts.as_known(o, zone) for o in operands[1:]]
    parts: list[exp.Expression] = []
    start, following = 0, 0
    while start < len(pattern):
        end = pattern.find("%", start)
        end = len(pattern) if end < 0 else end
        if end > start:
            parts.append(exp.Literal.string(pattern[start:end]))
        if end == len(pattern):
            break
        specifier = _SPECIFIER.match(pattern, end)
        if specifier is None:
            raise t.refuse(f'format() with "{pattern[end : end + 4]}"')
        start = specifier.end()
        if specifier[1]:
            parts.append(exp.Literal.string("%"))
            continue
        place = int(specifier[2]) - 1 if specifier[2] else following
        following = place + 1
        if not 0 <= place < len(values):
            raise UsageError("too few arguments for format()", sqlstate="22023")
        parts.append(_formatted(specifier[3], values[place], zone))
    parts = parts or [exp.Literal.string("")]
    return Operand(exp.Anonymous(this="concat", expressions=parts), _TEXT)


def _formatted(kind: str, value: Operand, zone: str) -> exp.Expression:
    text_ = output.output_of(value, zone)
    if kind == "s":
        return spark("coalesce(:x, '')", x=text_)
    if kind == "L":
        literal = let(_LITERAL, x=text_)
        return spark("coalesce(:x, 'NULL')", x=literal)
    error = t.failure("22004", "null values cannot be formatted as an SQL identifier")
    return spark(f"coalesce(:x, cast({error} as string))", x=_identifier(text_))


def encode(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate encode(); base64 is written in lines of 76 characters."""
    operand = casts.settled(operands[0], plain(t.BYTEA), zone)
    if operand.type.oid != t.BYTEA:
        raise no_function(name, operand.type)
    form = constant_text(name, operands[1]).lower()
    if form == "hex":
        return Operand(spark("lower(hex(:x))", x=operand.node), _TEXT)
    if form != "base64":
        raise t.refuse(f"encode() as {form}")
    lines = r"regexp_replace(base64(:x), '(.{76})(?=.)', '$1\n')"
    return Operand(spark(lines, x=operand.node), _TEXT)


def decode(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate decode(), which ignores white space; malformed data fails with 22023."""
    form = constant_text(name, operands[1]).lower()
    shapes = {
        # White space may separate bytes, but not the two digits of a byte.
        "hex": (
            r"forall(split(:x, '[ \\t\\n\\r]+'),"
            r" p -> p rlike '^([0-9A-Fa-f][0-9A-Fa-f])*+\\z')"
        ),
        "base64": (
            r"translate(:x, ' \t\n\r', '') rlike"
            r" '^([A-Za-z0-9+/]{4})*+([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\\z'"
        ),
    }
    if form not in shapes:
        raise t.refuse(f"decode() of {form}")
    read = rf"un{form}(translate(:x, ' \t\n\r', ''))"
    error = t.failure("22023", f"invalid {form} data")
    node = let(
        f"if(:x is null or {shapes[form]}, {read}, cast({error} as binary))",
        x=text(name, operands[0], zone),
    )
    return Operand(node, plain(t.BYTEA))


def sha256(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate sha256(), whose result is bytea."""
    operand = casts.settled(operands[0], plain(t.BYTEA), zone)
    if operand.type.oid != t.BYTEA:
        raise no_function(name, operand.type)
    return Operand(spark("unhex(sha2(:x, 256))", x=operand.node), plain(t.BYTEA))


def random_uuid(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate gen_random_uuid()."""
    return Operand(spark("uuid()"), plain(t.UUID))
