"""Query strings, parsed by PostgreSQL's grammar: statements, places, errors, and no crash."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from wal2lake.errors import SqlSyntaxError, UsageError
from wal2lake.sql.grammar import parse_string
from wal2lake.sql.grammar.pgparse.depth import LEVELS, check_depth


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("", []),
        (" ;; -- nothing\n/* at all */ ; ", []),
        ("select 1; values (2);", ["select 1", "values (2)"]),
        ("select ';'; table t", ["select ';'", "table t"]),
        ("/* é */ select 'é' -- c\n; begin", ["select 'é'", "begin"]),
        ("select e'a'\n'b\\';' /* c */; begin", ["select e'a'\n'b\\';'", "begin"]),
        ("select $a$;$$;$b$;$a$; begin", ["select $a$;$$;$b$;$a$", "begin"]),
        ("VERIFY TABLE é; select 'é'", ["VERIFY TABLE é", "select 'é'"]),
        ("select 1; wait for lsn '0/1'", ["select 1", "wait for lsn '0/1'"]),
        ("select verify from wait", ["select verify from wait"]),
    ],
)
def test_a_string_has_the_statements_that_postgresql_finds(sql, statements):
    found = parse_string(sql)
    assert [s.text for s in found] == statements
    assert all(sql[s.offset :].startswith(s.text) for s in found)


@pytest.mark.parametrize(
    ("sql", "message", "position"),
    [
        ("select 1; selekt 2", 'syntax error at or near "selekt"', 11),
        ("select 'é' frum t where", 'syntax error at or near "t"', 17),
        ("select 'é' from", "syntax error at end of input", 16),
        ("select 1; verify tabel t", 'syntax error at or near "tabel"', 18),
        ("verify; select from from", 'syntax error at or near "from"', 21),
        ("select $1a", 'trailing junk after parameter at or near "$1a"', 8),
        ("selekt $1a", 'syntax error at or near "selekt"', 1),
        ("select $1a frum from", 'trailing junk after parameter at or near "$1a"', 8),
    ],
)
def test_a_syntax_error_lets_nothing_of_the_string_run(sql, message, position):
    with pytest.raises(SqlSyntaxError) as caught:
        parse_string(sql)
    error = caught.value
    assert (error.message, error.position) == (message, position)


def test_a_nul_does_not_end_the_text():
    with pytest.raises(UsageError) as caught:
        parse_string("select 1;\0 selekt")
    assert caught.value.sqlstate == "22021"


SHAPES = {
    "sum": lambda n: "select 1" + " + 1" * n,
    "not": lambda n: "select " + "not " * n + "true",
    "minus": lambda n: "select " + "- " * n + "a",
    "brackets": lambda n: "select " + "(" * n + "1" + ")" * n,
    "calls": lambda n: "select " + "f(" * n + "1" + ")" * n,
    "queries": lambda n: "select " + "(select " * n + "1" + ")" * n,
    "union": lambda n: "select 1, 2" + " union select 1, 2" * n,
    "joins": lambda n: "select from a" + " join b on x and y" * n,
    "joins on the right": lambda n: "select from a" + " join b" * n + " on x and y" * n,
    "casts": lambda n: "select 1" + "::int" * n,
    "cases": lambda n: "select " + "case when " * n + "true" + " then 1 end" * n,
    "labels": lambda n: "select " + "case when a.end + " * n + "1" + " then 1 end" * n,
    "fields": lambda n: "select 1" + " + a.and + a.or" * n,
    "arrays": lambda n: "select " + "array[" * n + "1" + "]" * n,
    "subscripts": lambda n: "select a" + "[a" * n + "]" * n,
    "with": lambda n: "with a as (" * n + "select 1" + ") select 1" * n,
    "between": lambda n: "select " + "1 between 1 and not " * n + "true",
    "behind a query": lambda n: "select (select 1)" + " + 1" * n,
    "functions": lambda n: (
        "create function f() begin atomic " * n + "select 1;" + " end;" * n
    ),
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_what_would_end_the_process_is_refused(shape):
    with pytest.raises(UsageError) as caught:
        parse_string(SHAPES[shape](30_000))
    error = caught.value
    assert (error.sqlstate, error.message) == ("54001", "stack depth limit exceeded")
    assert error.hint == f"A statement may be nested {LEVELS} times."


def test_a_statement_may_be_nested_as_often_as_the_hint_says():
    assert len(parse_string("select 1" + " + 1" * (LEVELS // 2 - 1))) == 1


def test_long_statements_are_not_deep():
    for sql in (
        "insert into t values "
        + ", ".join(f"({i}, 'a', f({i}))" for i in range(5_000)),
        "select 1 where " + " or ".join(f"a = {i} and b = {i}" for i in range(5_000)),
        "select case "
        + " ".join(f"when a = {i} then {i}" for i in range(3_000))
        + " end",
        "select " + " union all select ".join(map(str, range(3_500))),
        "select 1 where a in (" + ", ".join(map(str, range(20_000))) + ")",
        ";".join(f"select {i}" for i in range(9_000)),
        "create table t ("
        + ", ".join(f"c{i} int not null" for i in range(1_500))
        + ")",
        "select '" + "(" * 20_000 + "', $$" + "[" * 20_000 + "$$",
    ):
        parse_string(sql)


_PIECES = (
    *("select", "(", ")", "[", "]", "not", "-", "+", "a", "1", "'x'", "case", "when"),
    *("then", "end", "and", "or", ",", ";", "union", "between", "a.and", "as end"),
    *("e'\\''", "$$", "$a$", "/*", "*/", "--", "\n", "::", "join", "on", "from", '"'),
    *("begin atomic", "verify", "$1", "é", "\U0001f600", "u&'\\0041'", "like", "is"),
)


def _survives(code: str) -> None:
    """Run code in a process of its own, which must not end by a signal."""
    done = subprocess.run(
        [sys.executable, "-"], input=code, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_threads_take_no_keys_of_the_process():
    """The library takes a key in each thread that calls it; a process has 1,024."""
    _survives(
        "import ctypes, threading\n"
        "from wal2lake.sql.grammar import parse_string\n"
        "for number in range(1_100):\n"
        "    sql = f'select {number}'\n"
        "    thread = threading.Thread(target=parse_string, args=(sql,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "create = ctypes.CDLL(None).pthread_key_create\n"
        "assert create(ctypes.byref(ctypes.c_uint()), None) == 0\n"
    )


def test_a_forked_process_has_threads_of_its_own():
    _survives(
        "import os\n"
        "from wal2lake.sql.grammar import parse_string\n"
        "parse_string('select 1')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(7 if len(parse_string('select 2; select 3')) == 2 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )


def test_threads_get_their_own_answers():
    """Texts short and long, from many threads at once."""
    sizes = [n for n in (1, 7, 100, 900) for _ in range(10)]
    texts = [
        ";".join(f"select {i}, 'thread {i}'" for _ in range(n))
        for i, n in enumerate(sizes)
    ]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(parse_string, texts))
    assert [len(statements) for statements in answers] == sizes
    for i, statements in enumerate(answers):
        assert {s.text for s in statements} == {f"select {i}, 'thread {i}'"}


def test_no_random_text_ends_the_process():
    _survives(
        "import random\n"
        "from wal2lake.errors import Wal2LakeError\n"
        "from wal2lake.sql.grammar import parse_string\n"
        f"pieces = {_PIECES!r}\n"
        "chance = random.Random(30)\n"
        "for number in range(300):\n"
        "    few = chance.sample(pieces, chance.randint(1, 6))\n"
        "    repeats = chance.choice((1, 3, 60, 2000))\n"
        "    text = ' '.join(['select', *few * repeats, *chance.choices(pieces, k=5)])\n"
        "    if chance.random() < 0.5:\n"
        "        text += ' ) ' * text.count('(') + ' end ' * text.count('case')\n"
        "    try:\n"
        "        parse_string(text)\n"
        "    except Wal2LakeError:\n"
        "        pass\n"
    )


def test_trees_of_the_deepest_texts_fit_the_stack():
    """Each shape as deep as it may be, in one process."""
    deepest = []
    for make in SHAPES.values():
        low, high = 1, 30_000
        while high - low > 1:
            middle = (low + high) // 2
            try:
                check_depth(make(middle))
                low = middle
            except UsageError:
                high = middle
        deepest.append(make(low))
    _survives(
        "from wal2lake.errors import Wal2LakeError\n"
        "from wal2lake.sql.grammar import parse_string\n"
        f"for text in {deepest!r}:\n"
        "    try:\n"
        "        parse_string(text)\n"
        "    except Wal2LakeError as error:\n"
        "        assert 'memory exhausted' in error.message, error\n"
    )
