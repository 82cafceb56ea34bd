"""Parses the expression of a row filter, a CHECK or a generated column into an untyped tree.

Comes in: a cursor at the first token of the expression. Goes out: a ``RawExpression`` tree, which
has the words of the expression and no types; the commands resolve it
(``commands.publication.filters`` for a row filter). A part that such an expression may not have (a
subquery, a parameter, an array) is of kind OTHER, so that its error comes after all syntax errors,
as in PostgreSQL.

The numbers are the precedences of operators; a greater number binds more tightly:

    1  OR              6  BETWEEN IN LIKE ILIKE       11  COLLATE
    2  AND             7  any other operator          12  a sign
    3  NOT             8  + -                         13  ::
    4  IS, ISNULL      9  * / %
    5  < > = <= >= <>  10 ^

Source: gram.y, a_expr, b_expr, c_expr, func_expr, case_expr and the precedences above them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from wal2lake.model import INVALID_OID, Oid
from wal2lake.pgtypes.keywords import RESERVED, words
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind


class RawExpressionKind(Enum):
    """The kinds of nodes, with the use of ``word``, ``names`` and ``args`` for each."""

    NAME = "name"
    """``names``: a column, which may be qualified."""
    STRING = "string"
    NUMBER = "number"
    """``word``: digits, with a sign if it had one."""
    WORD = "word"
    """``word``: true, false or null."""
    OPERATOR = "operator"
    BOOLEAN = "boolean"
    """``word``: AND, OR or NOT."""
    TEST = "test"
    """``word``: IS NULL, IS NOT TRUE ..."""
    DISTINCT = "distinct"
    """``word``: IS [NOT] DISTINCT FROM."""
    IN = "in"
    """``word``: = or <>; ``args``: the value to look for, and the items of the list."""
    ARRAY = "array"
    """``word``: an operator; ``names``: ANY or ALL; ``args``: the left side, the array's items."""
    CALL = "call"
    """``names``: the function; ``word``: DISTINCT, * or OVER, or empty."""
    ANY_OF = "any of"
    """``word`` and ``names`` as in ARRAY; ``args``: the left side, the array."""
    EXTREME = "extreme"
    """``word``: GREATEST or LEAST."""
    COLLATE = "collate"
    """``names``: the collation, which may be qualified."""
    COALESCE = "coalesce"
    NULLIF = "nullif"
    CASE = "case"
    """``word``: OF if the first arg is compared with each WHEN, or empty.

    ``args``: the compared value if ``word`` is OF, pairs of WHEN and THEN, and ELSE if given.
    """
    CAST = "cast"
    """``type_oid`` and ``typmod``: the target type."""
    OTHER = "other"
    """An expression of PostgreSQL's grammar that is not supported; ``word`` names it."""


@dataclass(frozen=True, slots=True)
class RawExpression:
    """One node of the untyped tree."""

    kind: RawExpressionKind
    args: tuple[RawExpression, ...] = ()
    word: str = ""
    names: tuple[str, ...] = ()
    type_oid: Oid = INVALID_OID
    typmod: int = -1
    position: int = field(default=0, compare=False)
    """The node's own token in the statement's text, 1-based: an operator, not its operands."""

    @property
    def first(self) -> int:
        """The position of the first token, without parentheses: exprLocation()."""
        return min([self.position, *(arg.first for arg in self.args)])


_COMPARISONS: Final = ("<", ">", "=", "<=", ">=", "<>", "!=")
_PRECEDENCES: Final = {"+": 8, "-": 8, "*": 9, "/": 9, "%": 9, "^": 10}
_OR, _AND, _NOT, _IS, _COMPARES, _LIKE, _OPERATOR = range(1, 8)
_COLLATE, _SIGN, _CAST = 11, 12, 13

_TESTS: Final = ("null", "true", "false", "unknown")
_LIKES: Final = {"like": "~~", "ilike": "~~*"}
_VALUE_FUNCTIONS: Final = words(
    """
    current_date current_time current_timestamp localtime localtimestamp current_role
    current_user session_user system_user user current_catalog current_schema
    """
)
_SPECIAL_CALLS: Final = words(
    """
    extract overlay position substring trim treat normalize xmlconcat xmlelement
    xmlexists xmlforest xmlparse xmlpi xmlroot xmlserialize json json_array
    json_arrayagg json_exists json_object json_objectagg json_query json_scalar
    json_value merge_action grouping
    """
)
_TYPE_WORDS: Final = words(
    """
    bigint bit boolean char character dec decimal double float int integer interval
    national nchar numeric real smallint time timestamp varchar
    """
)


def expression(cursor: TokenCursor) -> RawExpression:
    """Parse an a_expr."""
    return _binary(cursor, _OR)


def _binary(cursor: TokenCursor, least: int, *, plain: bool = False) -> RawExpression:
    """Parse operators of at least the precedence ``least``.

    ``plain`` stands for b_expr, which has no AND, IN, LIKE and IS NULL.
    """
    left = _unary(cursor, least, plain=plain)
    ceiling = 99
    while True:
        power = _precedence(cursor, plain=plain)
        if power is None or power < least or power > ceiling:
            if power is not None and power == _COMPARES and power >= least:
                # Comparisons are not associative.
                raise cursor.unexpected()
            return left
        position = cursor.token.start + 1
        left = _with_position(_infix(cursor, left, power), position)
        # After a comparison, LIKE or a test only an operator of lower precedence may follow.
        ceiling = power - 1 if power in (_COMPARES, _LIKE, _IS) else power


def _precedence(cursor: TokenCursor, *, plain: bool) -> int | None:
    """The precedence of the next token as a binary or postfix operator; None if it is none."""
    token = cursor.token
    if token.is_mark("::"):
        return _CAST
    if token.kind is TokenKind.OPERATOR:
        if token.value in _COMPARISONS:
            return _COMPARES
        return _PRECEDENCES.get(token.value, _OPERATOR)
    if token.kind is not TokenKind.WORD or (plain and token.value != "is"):
        return None
    following = cursor.ahead(1)
    if token.value == "not":
        return (
            _LIKE
            if following.is_word("between", "in", "like", "ilike", "similar")
            else None
        )
    return {
        "or": _OR,
        "and": _AND,
        "is": _IS,
        "isnull": _IS,
        "notnull": _IS,
        "between": _LIKE,
        "in": _LIKE,
        "like": _LIKE,
        "ilike": _LIKE,
        "similar": _LIKE,
        "collate": _COLLATE,
        "at": 11 if following.is_word("time", "local") else None,
        "operator": _OPERATOR if following.is_mark("(") else None,
    }.get(token.value)


def _infix(cursor: TokenCursor, left: RawExpression, power: int) -> RawExpression:
    token = cursor.next()
    if token.is_mark("::"):
        oid, typmod = _type(cursor)
        return RawExpression(
            RawExpressionKind.CAST, (left,), type_oid=oid, typmod=typmod
        )
    if token.kind is TokenKind.OPERATOR:
        name = "<>" if token.value == "!=" else token.value
        if cursor.token.is_word("any", "all", "some"):
            return _array(cursor, left, name)
        return RawExpression(
            RawExpressionKind.OPERATOR, (left, _binary(cursor, power + 1)), name
        )
    match token.value:
        case "or" | "and":
            right = _binary(cursor, power + 1)
            word = token.value.upper()
            # PostgreSQL makes one list of a AND b AND c, with or without parentheses.
            continues_list = (
                left.kind is RawExpressionKind.BOOLEAN and left.word == word
            )
            return RawExpression(
                RawExpressionKind.BOOLEAN,
                (*(left.args if continues_list else (left,)), right),
                word,
            )
        case "isnull":
            return RawExpression(RawExpressionKind.TEST, (left,), "IS NULL")
        case "notnull":
            return RawExpression(RawExpressionKind.TEST, (left,), "IS NOT NULL")
        case "is":
            return _is_test(cursor, left)
        case "collate":
            collation = cursor.qualified_name()
            schema = () if collation.schema is None else (collation.schema,)
            return RawExpression(
                RawExpressionKind.COLLATE, (left,), names=(*schema, collation.name)
            )
        case "at":
            if cursor.take("time"):
                cursor.expect("zone")
                return RawExpression(
                    RawExpressionKind.OTHER, (left, _binary(cursor, 12)), "AT TIME ZONE"
                )
            cursor.expect("local")
            return RawExpression(RawExpressionKind.OTHER, (left,), "AT LOCAL")
        case "operator":
            cursor.skip_parentheses()
            return RawExpression(
                RawExpressionKind.OTHER, (left, _binary(cursor, 8)), "OPERATOR()"
            )
    return _matching(cursor, left, token.value)


def _matching(cursor: TokenCursor, left: RawExpression, word: str) -> RawExpression:
    negated = word == "not"
    if negated:
        word = cursor.next().value
    match word:
        case "between":
            return _between(cursor, left, negated=negated)
        case "in":
            return _in(cursor, left, negated=negated)
        case "similar":
            cursor.expect("to")
            pattern = _binary(cursor, _OPERATOR)
            return RawExpression(RawExpressionKind.OTHER, (left, pattern), "SIMILAR TO")
    pattern = _binary(cursor, _OPERATOR)
    if cursor.take("escape"):
        escape = _binary(cursor, _OPERATOR)
        return RawExpression(RawExpressionKind.OTHER, (left, pattern, escape), "ESCAPE")
    operator = ("!" if negated else "") + _LIKES[word]
    return RawExpression(RawExpressionKind.OPERATOR, (left, pattern), operator)


def _array(cursor: TokenCursor, left: RawExpression, operator: str) -> RawExpression:
    """``= ANY (ARRAY[1, 2])``, ``= ANY ('{1,2}')``."""
    word = "ALL" if cursor.next().value == "all" else "ANY"
    if cursor.ahead(1).is_word("select", "values", "with", "table"):
        cursor.skip_parentheses()
        return RawExpression(RawExpressionKind.OTHER, (left,), "SELECT")
    cursor.expect_mark("(")
    if not (cursor.token.is_word("array") and cursor.ahead(1).is_mark("[")):
        array = expression(cursor)
        cursor.expect_mark(")")
        return RawExpression(RawExpressionKind.ANY_OF, (left, array), operator, (word,))
    cursor.expect("array")
    cursor.expect_mark("[")
    items = cursor.commas(lambda: expression(cursor))
    cursor.expect_mark("]")
    if cursor.token.is_mark("::"):
        cursor.next()
        _type(cursor)
        cursor.expect_mark(")")
        return RawExpression(
            RawExpressionKind.OTHER, (left, *items), "a cast of an array"
        )
    cursor.expect_mark(")")
    return RawExpression(RawExpressionKind.ARRAY, (left, *items), operator, (word,))


def _is_test(cursor: TokenCursor, left: RawExpression) -> RawExpression:
    negated = cursor.take("not")
    word = "IS NOT" if negated else "IS"
    for test in _TESTS:
        if cursor.take(test):
            return RawExpression(
                RawExpressionKind.TEST, (left,), f"{word} {test.upper()}"
            )
    if cursor.take("distinct", "from"):
        right = _binary(cursor, _COMPARES)
        return RawExpression(RawExpressionKind.DISTINCT, (left, right), word)
    if cursor.token.is_word("json", "document", "normalized", "nfc", "nfd"):
        word = f"{word} {cursor.next().value.upper()}"
        return RawExpression(RawExpressionKind.OTHER, (left,), word)
    raise cursor.unexpected()


def _between(
    cursor: TokenCursor, left: RawExpression, *, negated: bool
) -> RawExpression:
    symmetric = cursor.take("symmetric")
    if not symmetric:
        cursor.take("asymmetric")
    low = _binary(cursor, _COMPARES, plain=True)
    cursor.expect("and")
    high = _binary(cursor, _OPERATOR)

    def compared(operator: str, bound: RawExpression) -> RawExpression:
        return RawExpression(RawExpressionKind.OPERATOR, (left, bound), operator)

    def within(first: RawExpression, last: RawExpression) -> RawExpression:
        if negated:
            comparisons = (compared("<", first), compared(">", last))
            return RawExpression(RawExpressionKind.BOOLEAN, comparisons, "OR")
        comparisons = (compared(">=", first), compared("<=", last))
        return RawExpression(RawExpressionKind.BOOLEAN, comparisons, "AND")

    if not symmetric:
        return within(low, high)
    word = "AND" if negated else "OR"
    return RawExpression(
        RawExpressionKind.BOOLEAN, (within(low, high), within(high, low)), word
    )


def _in(cursor: TokenCursor, left: RawExpression, *, negated: bool) -> RawExpression:
    if not cursor.token.is_mark("("):
        raise cursor.unexpected()
    if cursor.ahead(1).is_word("select", "values", "with", "table"):
        cursor.skip_parentheses()
        return RawExpression(RawExpressionKind.OTHER, (left,), "SELECT")
    cursor.next()
    items = cursor.commas(lambda: expression(cursor))
    cursor.expect_mark(")")
    return RawExpression(RawExpressionKind.IN, (left, *items), "<>" if negated else "=")


# ---- what stands before an operator ----------------------------------------------------


def _unary(cursor: TokenCursor, least: int, *, plain: bool) -> RawExpression:
    position = cursor.token.start + 1
    return _with_position(_prefix(cursor, least, plain=plain), position)


def _with_position(raw: RawExpression, position: int) -> RawExpression:
    """Set the position of a node, and of its parts that have no token of their own."""
    if raw.position:
        return raw
    args = tuple(_with_position(arg, position) for arg in raw.args)
    return replace(raw, position=position, args=args)


def _prefix(cursor: TokenCursor, least: int, *, plain: bool) -> RawExpression:
    token = cursor.token
    if token.is_word("not") and not plain and least <= _NOT:
        cursor.next()
        return RawExpression(RawExpressionKind.BOOLEAN, (_binary(cursor, _NOT),), "NOT")
    if token.kind is TokenKind.OPERATOR:
        cursor.next()
        if token.value not in ("+", "-"):
            return RawExpression(
                RawExpressionKind.OPERATOR, (_binary(cursor, 8),), token.value
            )
        inner = _binary(cursor, _SIGN)
        if token.value == "-" and inner.kind is RawExpressionKind.NUMBER:
            negative = inner.word.startswith("-")
            word = inner.word[1:] if negative else "-" + inner.word
            return RawExpression(RawExpressionKind.NUMBER, word=word)
        return RawExpression(RawExpressionKind.OPERATOR, (inner,), token.value)
    return _primary(cursor)


def _primary(cursor: TokenCursor) -> RawExpression:
    token = cursor.token
    match token.kind:
        case TokenKind.STRING:
            return RawExpression(RawExpressionKind.STRING, word=cursor.next().value)
        case TokenKind.INTEGER | TokenKind.FLOAT:
            return RawExpression(
                RawExpressionKind.NUMBER, word=_number(cursor.next().value)
            )
        case TokenKind.PARAMETER:
            return RawExpression(
                RawExpressionKind.OTHER, word=f"${cursor.next().value}"
            )
        case TokenKind.BITS:
            cursor.next()
            return RawExpression(RawExpressionKind.OTHER, word="bit string")
        case TokenKind.QUOTED:
            return _column_or_call(cursor)
        case TokenKind.WORD:
            return _word(cursor)
    if not token.is_mark("("):
        raise cursor.unexpected()
    if cursor.ahead(1).is_word("select", "values", "with"):
        cursor.skip_parentheses()
        return RawExpression(RawExpressionKind.OTHER, word="SELECT")
    cursor.next()
    items = cursor.commas(lambda: expression(cursor))
    cursor.expect_mark(")")
    return (
        items[0]
        if len(items) == 1
        else RawExpression(RawExpressionKind.OTHER, items, "ROW")
    )


def _number(text: str) -> str:
    digits = text.replace("_", "")
    return str(int(digits, 0)) if digits[:2].lower() in ("0x", "0o", "0b") else digits


def _word(cursor: TokenCursor) -> RawExpression:
    word = cursor.token.value
    following = cursor.ahead(1)
    if word in ("true", "false", "null"):
        cursor.next()
        return RawExpression(RawExpressionKind.WORD, word=word)
    if word in _VALUE_FUNCTIONS:
        cursor.next()
        if cursor.token.is_mark("("):
            cursor.skip_parentheses()
        return RawExpression(RawExpressionKind.OTHER, word=word.upper())
    match word:
        case "case":
            return _case(cursor)
        case "cast":
            return _cast(cursor)
        case "exists" | "array" | "row" if following.is_mark("(") or following.is_mark(
            "["
        ):
            cursor.next()
            if following.is_mark("["):
                _skip_brackets(cursor)
            else:
                cursor.skip_parentheses()
            return RawExpression(RawExpressionKind.OTHER, word=word.upper())
        case "coalesce" | "nullif" if following.is_mark("("):
            kind = (
                RawExpressionKind.COALESCE
                if word == "coalesce"
                else RawExpressionKind.NULLIF
            )
            cursor.next()
            return RawExpression(kind, _argument_list(cursor))
        case "greatest" | "least" if following.is_mark("("):
            cursor.next()
            return RawExpression(
                RawExpressionKind.EXTREME, _argument_list(cursor), word.upper()
            )
    if word in _SPECIAL_CALLS and following.is_mark("("):
        cursor.next()
        cursor.skip_parentheses()
        return RawExpression(RawExpressionKind.OTHER, word=f"{word}()")
    typed = _typed_constant(cursor)
    if typed is not None:
        return typed
    if word in RESERVED:
        raise cursor.unexpected()
    return _column_or_call(cursor)


def _typed_constant(cursor: TokenCursor) -> RawExpression | None:
    """``date '2020-01-01'``, ``timestamp with time zone '...'``."""
    word = cursor.token.value
    if cursor.ahead(1).kind is not TokenKind.STRING:
        long = word in _TYPE_WORDS and (
            cursor.ahead(1).is_mark("(")
            or cursor.ahead(1).is_word("with", "without", "precision", "varying")
        )
        if not long:
            return None
    oid, typmod = _type(cursor)
    text = RawExpression(RawExpressionKind.STRING, word=cursor.string())
    return RawExpression(RawExpressionKind.CAST, (text,), type_oid=oid, typmod=typmod)


def _column_or_call(cursor: TokenCursor) -> RawExpression:
    """A column or a function call."""
    names = [cursor.label()]
    while cursor.take_mark("."):
        if cursor.take_mark("*"):
            return RawExpression(RawExpressionKind.OTHER, word="*")
        names.append(cursor.label())
    if not cursor.token.is_mark("("):
        return RawExpression(RawExpressionKind.NAME, names=tuple(names))
    word = ""
    following = cursor.ahead(1)
    args: tuple[RawExpression, ...] = ()
    if following.is_mark("*"):
        word = "*"
        cursor.skip_parentheses()
    elif following.is_word("distinct", "all", "variadic"):
        word = "DISTINCT"
        cursor.skip_parentheses()
    else:
        args = _arguments(cursor)
    if cursor.take("filter"):
        cursor.skip_parentheses()
    if cursor.take("over"):
        word = "OVER"
        if cursor.token.is_mark("("):
            cursor.skip_parentheses()
        else:
            cursor.name()
    return RawExpression(RawExpressionKind.CALL, args, word, tuple(names))


def _arguments(cursor: TokenCursor) -> tuple[RawExpression, ...]:
    cursor.expect_mark("(")
    if cursor.take_mark(")"):
        return ()
    items = cursor.commas(lambda: expression(cursor))
    cursor.expect_mark(")")
    return items


def _argument_list(cursor: TokenCursor) -> tuple[RawExpression, ...]:
    if cursor.ahead(1).is_mark(")"):
        raise cursor.unexpected(cursor.ahead(1))
    return _arguments(cursor)


def _case(cursor: TokenCursor) -> RawExpression:
    cursor.expect("case")
    args: list[RawExpression] = []
    word = ""
    if not cursor.token.is_word("when"):
        word = "OF"
        args.append(expression(cursor))
    if not cursor.token.is_word("when"):
        raise cursor.unexpected()
    while cursor.take("when"):
        args.append(expression(cursor))
        cursor.expect("then")
        args.append(expression(cursor))
    if cursor.take("else"):
        args.append(expression(cursor))
    cursor.expect("end")
    return RawExpression(RawExpressionKind.CASE, tuple(args), word)


def _cast(cursor: TokenCursor) -> RawExpression:
    cursor.expect("cast")
    cursor.expect_mark("(")
    inner = expression(cursor)
    cursor.expect("as")
    oid, typmod = _type(cursor)
    cursor.expect_mark(")")
    return RawExpression(RawExpressionKind.CAST, (inner,), type_oid=oid, typmod=typmod)


def _type(cursor: TokenCursor) -> tuple[Oid, int]:
    """Typename: take the tokens of one type and no more."""
    start = cursor.token.start
    first = cursor.next()
    if first.kind not in (TokenKind.WORD, TokenKind.QUOTED):
        raise cursor.unexpected(first)
    while cursor.take_mark("."):
        cursor.label()
    if first.is_word("double"):
        cursor.expect("precision")
    elif first.is_word("national"):
        cursor.next()
    if first.is_word("character", "char", "nchar", "bit", "national"):
        cursor.take("varying")
    if cursor.token.is_mark("("):
        cursor.skip_parentheses()
    if first.is_word("time", "timestamp"):
        for word in ("with", "without"):
            if cursor.at_words(word, "time", "zone"):
                cursor.take(word, "time", "zone")
    while cursor.token.is_mark("["):
        _skip_brackets(cursor)
    return parse_type_name(cursor.text[start : cursor.previous_end()])


def _skip_brackets(cursor: TokenCursor) -> None:
    cursor.expect_mark("[")
    depth = 1
    while depth:
        token = cursor.token
        if token.kind is TokenKind.END:
            raise cursor.unexpected()
        depth += token.is_mark("[") - token.is_mark("]")
        cursor.next()
