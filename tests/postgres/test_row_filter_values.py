"""Row filters are true for the rows for which PostgreSQL's WHERE is, and fail where it fails.

Each filter is analysed from its text, and evaluated over the texts that PostgreSQL sends; the same
text is asked of PostgreSQL in a SELECT.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import Database
from tests.fakes.publication_script import FILTERED, FILTERS, MORE
from tests.fakes.publishing import PublishingNode

from wal2lake.errors import Wal2LakeError
from wal2lake.pg.client import Client, Failure
from wal2lake.pgtypes.expressions import Filter, decode
from wal2lake.pgtypes.expressions.operators import can_match, operation
from wal2lake.sql.grammar.quoting import quote_literal

VALUES = (
    "insert into f (b, i2, i4, i8, n, u, r, d, t, v, c, da, ts, tz, uu, ba) values"
    " (true, 1, 1, 1, 1, 1, 1, 1, 'x', 'x', 'x', '2020-01-02', '2020-01-02',"
    " '2020-01-02 03:04:05+00', '6b29fc40-ca47-1067-b31d-00dd010662da', '\\x00ff'),"
    " (false, -1, -1, -1, -1.5, -1.5, -1.5, -1.5, 'it''s', 'y', 'x', '0044-03-15 BC',"
    " '0044-03-15 12:00 BC', '1883-01-01 00:00:00+00:01:15', null, ''),"
    " (null, 2, 5, 5000000000, 1.500, 1.5, 1.5, 1.5, 'a', 'b', 'b    ', 'infinity',"
    " '-infinity', 'infinity', 'ffffffff-ca47-1067-b31d-00dd010662da', '\\x00'),"
    " (true, 32767, 2147483647, 9223372036854775807, 'NaN', 'NaN', 'NaN', 'NaN',"
    " 'xé', 'ä', 'ä', '5874897-12-31', '294276-12-31 23:59:59.999999',"
    " '4713-01-01 00:00:00+00 BC', null, null),"
    " (true, 3, 3, 3, 0.1, 'Infinity', '-Infinity', 0.1, 'y\nx', '', '', '2000-02-29',"
    " '2020-01-02 03:04:05.678', '2020-06-01 00:00:00-05:30', null, null),"
    " (false, 0, 0, 0, 0, 100000000000000000000000.5, 0.1, 1e300, '', 'x  ', 'a b',"
    " '1999-12-31', '1999-12-31 23:59:59.9', '1999-12-31 23:59:59.9Z', null, null),"
    " (null, null, null, null, null, null, null, null, null, null, null, null, null,"
    " null, null, null)"
)


JSON = (
    '{"a": "x", "k": 1.50, "l": ["a", "b"], "o": {"p": "q\\""}, "z": null}',
    '{ "k" :1.5e0 , "a":"y", "a" : "x", "l":[ ],"o":5, "\\u00e9": "é\\ud83d\\ude00"}',
    '[7, "x", [1, 2], {"a": "x"}]',
    '"a"',
    "null",
    '{"": "x", "l": {"1": "b"}, "k": true}',
    "  [ ]  ",
)
"""For each row in turn."""


def _asked(client: Client, text: str, number: int) -> object:
    """Whether it is true for a row, or why not."""
    text = text.replace("public.f.", "f.")
    (found,) = client.run(
        f"select ({text}) is true from (select * from f where number = {number}"
        " offset 0) f"
    )
    return found.sqlstate if isinstance(found, Failure) else found.rows[0][0] == "t"


def _evaluated(filter_: Filter, row: list[pa.Array]) -> object:
    try:
        return filter_.matches(row, 1)[0]
    except Wal2LakeError as error:
        return error.sqlstate


def test_row_filters_are_true_where_postgresql_says_so(
    pg18: Database, tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    assert node.run(FILTERED) == [("CREATE TABLE",)]
    pg18.psql(FILTERED.replace("(b bool", "(number serial, b bool"))
    differences = []
    evaluated = 0
    with Client(pg18.conninfo()) as client:
        list(client.run("set timezone = 'UTC'"))
        assert [getattr(one, "tag", one) for one in client.run(VALUES)] == [
            "INSERT 0 7"
        ]
        for number, text in enumerate(JSON, 1):
            literal = text.replace("'", "''")
            updated = client.run(
                f"update f set js = '{literal}', jb = '{literal}' where number = {number}"
            )
            assert [getattr(one, "tag", one) for one in updated] == ["UPDATE 1"]
        table = node.catalog.table("public", "f")
        assert table is not None
        names = [column.name for column in table.columns]
        rows = client.rows(f"select {', '.join(names)} from f order by number")
        arrays = {
            name: pa.array(
                [None if v is None else v.encode() for v in column], pa.binary()
            )
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
        for text in (*FILTERS, *MORE):
            told = node.run(f"create publication fp for table f where ({text})")
            if told != [("CREATE PUBLICATION",)]:
                assert text not in MORE, (text, told)
                continue
            (kept,) = node.catalog.publications()[0].tables
            node.run("drop publication fp")
            assert kept.filter is not None
            filter_ = Filter(decode(kept.filter), kept.filter_columns)
            for number in range(1, len(rows) + 1):
                row = [arrays[n].slice(number - 1, 1) for n in filter_.columns]
                found, expected = _evaluated(filter_, row), _asked(client, text, number)
                if found != expected:
                    differences.append(
                        f"{text}, row {number}: PostgreSQL {expected}, node {found}"
                    )
            whole = [arrays[name] for name in filter_.columns]
            each = [
                _evaluated(filter_, [array.slice(i, 1) for array in whole])
                for i in range(len(rows))
            ]
            if all(isinstance(one, bool) for one in each):
                assert filter_.matches(whole, len(rows)) == each
            evaluated += 1
    assert not differences, "\n".join(differences)
    assert evaluated > 200


_PIECES = (
    *("a", "b", "A", "é", "-", "]", "}", "1", " ", "\n", ".", "^", "$", "\\.", "\\d"),
    *(
        "*",
        "+",
        "?",
        "*?",
        "{2}",
        "{1,2}",
        "{,2}",
        "{2,1}",
        "{0,}",
        "|",
        "(",
        "(?:",
        ")",
    ),
    *("[ab]", "[^a-b]", "[]a]", "[a-]", "[b-a]", "[A-b1-2]", "[^]", "[", "[[:alpha:]]"),
    *("\\n", "\\w", "\\", "(?i)", "***=", "(?=a)"),
)
_TEXTS = ("", "a", "ab", "aab", "A", "é", "É", "a-b", "1.2", "b\na", "]", "a}", "bb1 a")


def test_regular_expressions_match_what_postgresql_matches(pg18: Database) -> None:
    chosen = random.Random(18)
    patterns = {
        "".join(chosen.choices(_PIECES, k=chosen.randint(1, 6))) for _ in range(9000)
    }
    texts = ", ".join(f"({n}, {quote_literal(text)})" for n, text in enumerate(_TEXTS))
    known = 0
    differences = []
    with Client(pg18.conninfo()) as client:
        list(
            client.run(f"create table x (n int, t text); insert into x values {texts}")
        )
        for pattern in sorted(patterns):
            for name in ("~", "~*"):
                if not can_match(pattern, name):
                    continue
                known += 1
                match = operation(name, 25, 25, 16)
                mine = [match(t.encode(), pattern.encode()) for t in _TEXTS]
                asked = f"select t {name} {quote_literal(pattern)} from x order by n"
                (found,) = client.run(asked)
                theirs: object = found
                if not isinstance(found, Failure):
                    theirs = [row[0] == "t" for row in found.rows]
                if mine != theirs:
                    differences.append(f"{pattern!r} {name}: {theirs}, node {mine}")
    assert not differences, "\n".join(differences[:40])
    assert known > 2000
