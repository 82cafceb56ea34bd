"""Tokens and statements of a query string; errors are PostgreSQL 18.4's."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake.errors import SqlSyntaxError, Wal2LakeError
from wal2lake.sql.grammar import quote_identifier, quote_literal, split_statements
from wal2lake.sql.grammar.lexer import TokenKind, tokens


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
            0,
        ),
        ("select u&'\\00'", "42601", "invalid Unicode escape", 11),
    ],
)
def test_malformed_text_is_refused_as_postgresql_does(
    sql: str, sqlstate: str, message: str, position: int
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        list(tokens(sql))
    error = caught.value
    assert (error.sqlstate, error.message) == (sqlstate, message)
    assert error.position == position


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("", []),
        (" ;; -- nothing\n/* at all */ ; ", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';'; b", ["select ';'", "b"]),
        ("select 'it''s;'; b", ["select 'it''s;'", "b"]),
        (r"select E'\';'; b", [r"select E'\';'", "b"]),
        (r"select '\'; b", [r"select '\'", "b"]),
        ('select ";"";" ; b', ['select ";"";"', "b"]),
        ("select $$;$$; b", ["select $$;$$", "b"]),
        ("select $a$;$$;$b$;$a$; b", ["select $a$;$$;$b$;$a$", "b"]),
        ("select a$b$; b$a", ["select a$b$", "b$a"]),
        ("select $1; b", ["select $1", "b"]),
        ("a -- ;\n b; c", ["a -- ;\n b", "c"]),
        ("a /* ; /* ; */ ; */ b; c", ["a /* ; /* ; */ ; */ b", "c"]),
        ("/* head */ a /* tail */; b", ["a", "b"]),
        ("select u&'\\0061;' ; b", ["select u&'\\0061;'", "b"]),
        ("select x'1;2'; é;", ["select x'1;2'", "é"]),
    ],
)
def test_a_string_is_cut_where_postgresql_cuts_it(sql, statements):
    found = split_statements(sql)
    assert [s.text for s in found] == statements
    assert all(sql[s.offset :].startswith(s.text) for s in found)


@pytest.mark.parametrize(
    ("sql", "what", "position"),
    [
        ("select 'a", "quoted string", 8),
        ("select 'a''", "quoted string", 8),
        ("select E'a\\'", "quoted string", 8),
        ('select "a', "quoted identifier", 8),
        ("select 1; $x$ a $y$", "dollar-quoted string", 11),
        ("a /* /* */", "/* comment", 3),
        ("select b'1", "bit string literal", 8),
    ],
)
def test_what_is_never_closed_is_a_syntax_error(sql, what, position):
    with pytest.raises(SqlSyntaxError, match=r"^unterminated") as caught:
        split_statements(sql)
    assert caught.value.message.startswith(f"unterminated {what} at or near")
    assert caught.value.position == position


@given(st.text(st.sampled_from("'\"$;-/*\\eEa \n1"), max_size=40))
def test_any_text_is_statements_or_a_syntax_error(sql):
    with contextlib.suppress(SqlSyntaxError):
        for statement in split_statements(sql):
            assert statement.text in sql
            assert statement.text.strip()


@pytest.mark.parametrize(
    "sql", ["select 1a", 'select ""', r"select E'\u00'", "select {"]
)
def test_a_malformed_statement_is_cut_off_like_any_other(sql):
    found = split_statements(f"{sql}; b")
    assert [s.text for s in found] == [sql, "b"]


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_a_quoted_value_never_ends_a_statement(value, name):
    literal = "'" + value.replace("'", "''") + "'"
    identifier = '"' + name.replace('"', '""') + '"'
    assert len(split_statements(f"select {literal} as {identifier}; b")) == 2


@pytest.mark.parametrize(
    "piece", ["''", "\\'", "$a", "/*", "*/", '"', "e'", "--", "1.", "--\n'a'\n", "$a$"]
)
@pytest.mark.parametrize("read", [split_statements, tokens])
def test_hostile_text_is_scanned_in_linear_time(piece, read):
    started = time.perf_counter()
    for opening in ("'", "E'", '"', "$$", "/*", ""):
        with contextlib.suppress(Wal2LakeError):
            for _ in read(opening + piece * 30_000):
                pass
    assert time.perf_counter() - started < 5


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
