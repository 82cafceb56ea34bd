"""Tokens and statements of a query string; errors are PostgreSQL 18.4's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.errors import Wal2LakeError
from wal2lake.frontend.grammar import quote_identifier, quote_literal, split_statements
from wal2lake.frontend.grammar.lexer import TokenKind, tokens


def _values(sql: str) -> list[tuple[str, str]]:
    return [(t.kind.value, t.value) for t in tokens(sql)][:-1]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("Select É", [("word", "select"), ("word", "É")]),
        ('"A""b" U&"\\0041"', [("quoted", 'A"b'), ("quoted", "A")]),
        ("'it''s'", [("string", "it's")]),
        ("'a' -- c\n 'b'", [("string", "ab")]),
        ("'a' 'b'", [("string", "a"), ("string", "b")]),
        ("e'\\x41\\101\\u0041\\n\\q'", [("string", "AAA\nq")]),
        ("e'\\ud83d\\ude00'", [("string", "😀")]),
        ("$$a'b$$ $x$ $$ $x$", [("string", "a'b"), ("string", " $$ ")]),
        ("$1 $12", [("parameter", "1"), ("parameter", "12")]),
        ("1 1.5 .5 1e5 0x1F 1_000", None),
        (
            "a<-1",
            [("word", "a"), ("operator", "<"), ("operator", "-"), ("integer", "1")],
        ),
        ("a@-1", [("word", "a"), ("operator", "@-"), ("integer", "1")]),
        (
            "a::b.c",
            [
                ("word", "a"),
                ("mark", "::"),
                ("word", "b"),
                ("mark", "."),
                ("word", "c"),
            ],
        ),
        ("b'01' x'1F'", [("bits", "b01"), ("bits", "x1F")]),
        ("/* a /* b */ c */ x -- y", [("word", "x")]),
    ],
)
def test_tokens_have_the_values_they_stand_for(
    sql: str, expected: list[tuple[str, str]] | None
) -> None:
    if expected is None:
        kinds = [kind for kind, _ in _values(sql)]
        assert kinds == ["integer", "float", "float", "float", "integer", "integer"]
    else:
        assert _values(sql) == expected


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message", "position"),
    [
        ("select 'abc", "42601", 'unterminated quoted string at or near "\'abc"', 8),
        ('select "abc', "42601", 'unterminated quoted identifier at or near ""abc"', 8),
        ("select /* abc", "42601", 'unterminated /* comment at or near "/* abc"', 8),
        (
            "select $$abc",
            "42601",
            'unterminated dollar-quoted string at or near "$$abc"',
            8,
        ),
        ('select ""', "42601", 'zero-length delimited identifier at or near """"', 8),
        (
            "select 1a",
            "42601",
            'trailing junk after numeric literal at or near "1a"',
            8,
        ),
        (
            "select 1_",
            "42601",
            'trailing junk after numeric literal at or near "1_"',
            8,
        ),
        ("select $1a", "42601", 'trailing junk after parameter at or near "$1a"', 8),
        ("select e'\\u00'", "22025", "invalid Unicode escape", 10),
        (
            "select e'\\ud800'",
            "42601",
            'invalid Unicode surrogate pair at or near "\'"',
            16,
        ),
        (
            "select e'\\000'",
            "22021",
            'invalid byte sequence for encoding "UTF8": 0x00',
            None,
        ),
        ("select u&'\\00'", "42601", "invalid Unicode escape", 11),
    ],
)
def test_malformed_text_is_refused_as_postgresql_does(
    sql: str, sqlstate: str, message: str, position: int | None
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        list(tokens(sql))
    error = caught.value
    assert (error.sqlstate, error.message) == (sqlstate, message)
    assert getattr(error, "position", None) == position


def test_a_query_string_is_split_at_its_semicolons_only() -> None:
    sql = "select ';' ; -- a;\n /* ; */ insert into t values ($$;$$);; \";\";"
    assert [(s.text, s.offset) for s in split_statements(sql)] == [
        ("select ';'", 0),
        ("insert into t values ($$;$$)", sql.index("insert")),
        ('";"', sql.index('";"')),
    ]
    assert split_statements(" ; -- nothing\n;") == []


def test_long_names_are_cut_at_63_bytes() -> None:
    assert _values("é" * 40) == [("word", "é" * 31)]


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    _TEXT,
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        min_size=1,
        max_size=15,
    ),
)
def test_quoting_is_undone_by_the_lexer(text: str, name: str) -> None:
    sql = f"{quote_literal(text)}, {quote_identifier(name)}"
    found = [t.value for t in tokens(sql)]
    assert (found[0], found[2]) == (text, name)


@given(_TEXT)
def test_any_text_is_tokens_or_an_error(text: str) -> None:
    try:
        found = list(tokens(text))
    except Wal2LakeError:
        return
    assert found[-1].kind is TokenKind.END
    places = [t.start for t in found]
    assert places == sorted(places)
    for token in found:
        assert text[token.start : token.end] == token.text


def test_hostile_text_takes_linear_time() -> None:
    for piece in ("'a''", "/*", "e'\\'", '"a""', "$a$", "1.", "--\n'a'\n"):
        sql = piece * 20_000
        try:
            for _ in tokens(sql):
                pass
        except Wal2LakeError:
            pass
