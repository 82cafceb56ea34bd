"""Restricts a user's expression to an allowed set of functions.

Comes in: the expression's text. Goes out: nothing, or the error that refuses it. Called by
``evaluate`` before Spark analyzes the expression, and again with the analyzed plan.

This is a list of what is allowed, not of what is forbidden: Spark has functions that read files,
the environment or the clock, and new versions add more. Parsing reads nothing, so an expression
that is refused here has read no file.

'now', 'today' and similar words are the time where a constant text becomes a date or a timestamp,
and nowhere else: not in a column's text.

Sources: Spark 4.1 "Functions", AstBuilder.scala, optimizer/finishAnalysis.scala
(SpecialDatetimeValues).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError
from wal2lake.pgtypes import COMMIT_FACTS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS: Final = _words(
    """
    between coalesce equal_null greatest if ifnull isnan isnotnull isnull least nanvl nullif
    nullifzero nvl nvl2 zeroifnull
    bigint binary boolean date decimal double float int smallint string timestamp tinyint
    ascii base64 bin bit_length btrim char char_length character_length chr concat concat_ws
    contains conv crc32 decode elt encode endswith find_in_set format_number format_string hash
    hex ilike initcap instr lcase left len length levenshtein like locate lower lpad ltrim md5
    octet_length overlay position printf regexp regexp_count regexp_extract regexp_extract_all
    regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rlike
    rpad rtrim sha sha1 sha2 soundex split split_part startswith substr substring
    substring_index to_binary to_char to_number to_varchar translate trim try_to_number ucase
    unbase64 unhex upper xxhash64
    abs acos asin atan atan2 bit_count bround cbrt ceil ceiling cos cosh cot degrees e exp expm1
    factorial floor hypot ln log log10 log1p log2 mod negative pi pmod positive pow power
    radians rint round shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan
    tanh try_add try_divide try_mod try_multiply try_subtract width_bucket
    add_months date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
    dateadd datediff datepart day dayofmonth dayofweek dayofyear extract from_unixtime
    from_utc_timestamp hour last_day make_date make_dt_interval make_interval make_timestamp
    make_ym_interval minute month months_between next_day quarter second timestamp_micros
    timestamp_millis timestamp_seconds to_date to_timestamp to_unix_timestamp to_utc_timestamp
    trunc try_to_timestamp unix_date unix_micros unix_millis unix_seconds unix_timestamp weekday
    weekofyear year
    aggregate array array_append array_compact array_contains array_distinct array_except
    array_insert array_intersect array_join array_max array_min array_position array_prepend
    array_remove array_size array_sort array_union arrays_overlap arrays_zip
    cardinality element_at exists filter flatten forall get map map_concat map_contains_key
    map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with
    named_struct reduce size slice sort_array str_to_map struct transform transform_keys
    transform_values try_element_at zip_with
    from_json get_json_object json_array_length json_object_keys to_json
    """
)
"""Functions that depend on their arguments only: conditions, casts, texts, numbers, dates and
times, arrays, maps and structs, JSON. docs/arch/5_apply.md has the list, too."""

_COUNTS: Final = {
    "array_insert": 1,
    "format_number": 1,
    "lpad": 1,
    "repeat": 1,
    "rpad": 1,
}
"""Position of the argument that sets the length of the result, whatever the other arguments
are."""

_FORMATS: Final = ("format_string", "printf")

_FOLDS: Final = ("aggregate", "reduce")
"""Functions whose result becomes their argument again."""

_MOST: Final = 10_000
"""Largest length that such a function may give a value, and a value within a value: from a row of
a few bytes an expression can fill the memory of a JVM."""

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")

_WIDTH: Final = re.compile(r"\d+")

_NODES: Final = _words(
    """
    Add Alias And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Concat
    CreateNamedStruct Divide EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual ILike In
    IntegralDivide IsNotNull IsNotUnknown IsNull IsUnknown LambdaFunction LessThan
    LessThanOrEqual Like LikeAll LikeAny Literal Multiply Not NotLikeAll NotLikeAny Or Overlay
    RLike Remainder ShiftLeft ShiftRight ShiftRightUnsigned StringLocate StringTrim
    StringTrimLeft StringTrimRight Substring Subtract TimestampAdd TimestampDiff UnaryMinus
    UnaryPositive UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction
    UnresolvedNamedLambdaVariable
    """
)
"""Allowed nodes of the parser; classes of catalyst's expressions."""

_CALLED: Final = {
    "ScalarSubquery": "a subquery",
    "Exists": "a subquery",
    "InSubquery": "a subquery",
    "ListQuery": "a subquery",
    "WindowExpression": "a window function",
    "AggregateExpression": "an aggregate function",
    "UnresolvedStar": "*",
    "ExpressionWithUnresolvedIdentifier": "IDENTIFIER",
    "NamedParameter": "a parameter",
    "PosParameter": "a parameter",
}

_CURRENT: Final = frozenset(
    (
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "localtimestamp",
        "now",
        "session_user",
        "user",
    )
)
"""Functions of the time and the session, also without parentheses."""

_ROWS: Final = ("local", "remote", *COMMIT_FACTS)

_MOMENTS: Final = ("date", "timestamp", "timestamp_ntz", "time")
"""Types whose texts may mean the time."""

_TIME_WORDS: Final = ("now", "today", "tomorrow", "yesterday")

_BLANK: Final = "".join(map(chr, range(33))) + "\x7f"

_DETAIL: Final = "A batch may be repeated, and must have the same result."

_HINT: Final = (
    "Use the columns of local and remote, local_commit_time, remote_commit_time and"
    " local_origin, operators and the functions that the documentation of"
    " conflict_resolution lists."
)


def check_parsed(spark: SparkSession, text: str) -> None:
    """Check the parsed expression. Raises UsageError (0A000, 42703, 42883), and Spark's
    ParseException."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    parsed = parser.parseExpression(text)
    _check_counts(parsed)
    for node in _nodes_below(parsed):
        kind = _class_of(node)
        if kind not in _NODES:
            raise refused(text, _CALLED.get(kind, kind))
        if kind == "UnresolvedFunction":
            _check_function(spark, node.nameParts().mkString("."))
        elif kind == "UnresolvedAttribute":
            _check_name(text, node.nameParts())
        elif kind == "Literal" and node.dataType().simpleString() in _MOMENTS:
            literal_text = _literal_text(parser, node)
            if literal_text is None or is_time_word(literal_text):
                raise refused(text, f"the time, '{literal_text or 'now'}'")


def check_analyzed(spark: SparkSession, text: str, plan: Any) -> None:
    """Check ``plan``, the analyzed plan of the expression. Raises UsageError (0A000)."""
    catalyst: Any = spark._jvm.org.apache.spark.sql.catalyst
    # The optimizer's first step turns to_timestamp(x) into the cast that it stands for.
    plan = catalyst.optimizer.ReplaceExpressions.apply(plan)
    expressions = plan.expressions()
    for i in range(expressions.size()):
        for node in _nodes_below(expressions.apply(i)):
            name = node.prettyName().lower()
            if name in _CURRENT:
                raise refused(text, f"{name}()")
            if _class_of(node) != "Cast":
                continue
            source = node.child()
            if (
                node.dataType().simpleString() not in _MOMENTS
                or not source.dataType().simpleString().startswith("string")
                or not source.foldable()
            ):
                continue
            if _class_of(source) != "Literal":
                raise refused(text, "a date or time of a constant that is no literal")
            if source.value() is not None and is_time_word(source.value().toString()):
                raise refused(text, f"the time, '{source.value().toString()}'")


def is_time_word(text: str) -> bool:
    """Whether Spark reads the text as a moment that depends on the time."""
    return text.strip(_BLANK).lower().startswith(_TIME_WORDS)


def refused(text: str, construct: str) -> FeatureNotSupportedError:
    """Build the error for an expression that depends on more than the two rows."""
    return FeatureNotSupportedError(
        f'expression in "conflict_resolution" is not deterministic: "{text}"',
        detail=f"It uses {construct}. {_DETAIL}",
        hint=_HINT,
    )


def _check_function(spark: SparkSession, name: str) -> None:
    if name.lower() in FUNCTIONS:
        return
    jvm: Any = spark._jvm
    registry = spark._jsparkSession.sessionState().functionRegistry()
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    if not registry.functionExists(identifier(name.lower())):
        raise UndefinedObjectError(
            f'function "{name}" does not exist', sqlstate="42883", hint=_HINT
        )
    raise FeatureNotSupportedError(
        f'function "{name}" is not available in "conflict_resolution"',
        detail=f"Its result may depend on more than its arguments. {_DETAIL}",
        hint=_HINT,
    )


def _check_counts(parsed: Any) -> None:
    """Refuse functions that can make a value longer than ``_MOST`` by a number instead of by their
    texts."""
    waiting = [(parsed, 1)]
    while waiting:
        node, times = waiting.pop()
        if _class_of(node) == "UnresolvedFunction":
            name = node.nameParts().mkString(".").lower()
            if name in _COUNTS or name in _FORMATS:
                count = _count_of(node, name)
                if count is None or count * times > _MOST:
                    raise _too_long(name)
                times *= max(count, 1)
            elif name in _FOLDS:
                times = _MOST + 1
        children = node.children()
        waiting += [(children.apply(i), times) for i in range(children.size())]


def _count_of(call: Any, name: str) -> int | None:
    """Return the length that the call gives a value at most; None if it is not a constant."""
    arguments = call.arguments()
    position = _COUNTS.get(name, 0)
    if arguments.size() <= position:
        # Spark refuses the call.
        return 1
    argument = arguments.apply(position)
    if _class_of(argument) != "Literal" or argument.value() is None:
        return None
    kind = argument.dataType().simpleString()
    if kind in _WHOLE and name in _COUNTS:
        return max(abs(int(argument.value())), 1)
    if kind == "string" and name == "format_number":
        # The result is as long as the format, such as '#,###.##'.
        return 1
    if kind == "string" and name in _FORMATS:
        return max(map(int, _WIDTH.findall(argument.value().toString())), default=1)
    return None


def _too_long(name: str) -> FeatureNotSupportedError:
    argument = "format" if name in _FORMATS else "count"
    return FeatureNotSupportedError(
        f'function "{name}" in "conflict_resolution" needs a constant {argument} of at most'
        f" {_MOST}",
        detail="Its result could exceed the available memory. For nested calls the product"
        " counts.",
        hint=f'Write the {argument} of "{name}" as a literal, outside of aggregate() and'
        " reduce().",
    )


def _check_name(text: str, parts: Any) -> None:
    first = parts.head()
    if first in _ROWS:
        return
    if parts.size() == 1 and first.lower() in _CURRENT:
        raise refused(text, first.lower())
    raise UndefinedObjectError(
        f'column "{parts.mkString(".")}" does not exist',
        sqlstate="42703",
        hint="Write local.column or remote.column.",
    )


def _literal_text(parser: Any, literal: Any) -> str | None:
    """Return the text of a typed literal, whose value does not show how it was written."""
    origin = literal.origin()
    places = (origin.sqlText(), origin.startIndex(), origin.stopIndex())
    if not all(place.isDefined() for place in places):
        return None
    whole, start, stop = (place.get() for place in places)
    token = whole[start : stop + 1]
    quote = min((i for i in map(token.find, "'\"") if i >= 0), default=-1)
    if quote < 0:
        return None
    raw = token[quote - 1 : quote].lower() == "r"
    parsed = parser.parseExpression(token[quote - raw :])
    if _class_of(parsed) != "Literal" or parsed.dataType().simpleString() != "string":
        return None
    text: str = parsed.value().toString()
    return text


def _nodes_below(node: Any) -> Iterator[Any]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        children = current.children()
        waiting += [children.apply(i) for i in range(children.size())]


def _class_of(node: Any) -> str:
    name: str = node.getClass().getName()
    return name.rpartition(".")[2].partition("$")[0]
