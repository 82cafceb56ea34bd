"""The statements that a server is asked: digests of blocks, hashes and values of rows.

Comes in: what to read (a relation with its row filter), columns, forms, the key. Goes out: SQL.
Called by ``sides``. Needs neither an extension nor a privilege beyond SELECT.

    image     record_send(ROW(...)) of the columns' forms
    hash      hash_record_extended(ROW(image), seed): the extended hash of a record of one column,
              which is the hash of that column. bytea has no hash function that SQL can call before
              PostgreSQL 18, but its operator class has one since 11.

OFFSET 0 keeps the planner from evaluating the image once for each use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wal2lake.pg import RemoteTable
from wal2lake.pg.quoting import quote_ident
from wal2lake.verify.division import Division, is_ordered
from wal2lake.verify.forms import ColumnForm
from wal2lake.verify.rowhashes import FIRST_SEED, KEY_SEED, SECOND_SEED

PROBE: Final = (
    "SELECT pg_catalog.hash_record_extended(ROW("
    "pg_catalog.record_send(ROW(1::bigint, 'wal2lake'::text))),"
    f" {FIRST_SEED})"
)
"""The hash of a known row, by which a server that hashes differently is found out."""

LONG_CHARACTERS: Final = 1_000
"""Length from which a value is shown by its beginning and a digest. Keys are shown whole."""

_SHOWN_CHARACTERS: Final = 200


def published_rows(remote: RemoteTable) -> str:
    """Return the relation and its row filter, as the publication has them."""
    only = "ONLY " if remote.kind == "r" else ""
    filters = " OR ".join(f"({text})" for text in remote.row_filters)
    return f"{only}{remote.qualified}" + (f" WHERE ({filters})" if filters else "")


def text_of(expression: str) -> str:
    """Return the text that the output function of the type writes; null for null."""
    return (
        f"CASE WHEN ({expression}) IS NOT DISTINCT FROM NULL THEN NULL"
        f" ELSE pg_catalog.concat({expression}) END"
    )


@dataclass(frozen=True, slots=True)
class TableStatements:
    """Builds the statements of one table."""

    rows: str
    """Text behind FROM: the relation, and WHERE with its row filter."""
    columns: tuple[str, ...]
    forms: tuple[ColumnForm, ...]
    key: tuple[int, ...]
    """Positions of the key's columns; empty: no key."""
    filtered: bool = False
    """Whether ``rows`` has a WHERE."""

    def digests(self, division: Division) -> str:
        """Ask for each block's number, its count of rows, and the sums of both hashes."""
        return (
            "SELECT h.block, pg_catalog.count(*), pg_catalog.sum(h.first),"
            f" pg_catalog.sum(h.second) FROM ({self._hashed(division)}) h GROUP BY 1"
        )

    def hashes(self, division: Division, blocks: Iterable[int]) -> str:
        """Ask for key hash, first and second hash of the rows of these blocks."""
        return (
            f"SELECT h.key_hash, h.first, h.second FROM ({self._hashed(division)}) h"
            f" WHERE h.block IN ({_numbers(blocks)})"
        )

    def values(self, keys: Iterable[int]) -> str:
        """Ask for the key hash, the first hash, and each column's text, of one row for each of
        these key hashes (signed). A long text is shortened (``shortened``)."""
        keys = tuple(keys)
        columns = ", ".join(self._expressions)
        names = ", ".join(f"c{n}" for n in range(len(self.columns)))
        named = f"{names}, image" + (", key_image" if self.key else "")
        texts = ", ".join(
            _text(f"v.c{n}", whole=n in self.key) for n in range(len(self.columns))
        )
        return (
            f"SELECT DISTINCT ON (v.key_hash) v.key_hash, v.first, {texts}"
            f" FROM (SELECT {self._key_hash} AS key_hash,"
            f" {_hash('i.image', FIRST_SEED)} AS first, {names}"
            f" FROM (SELECT {columns}, {self._image} FROM {self.rows} OFFSET 0)"
            f" AS i({named}) OFFSET 0) v WHERE v.key_hash IN ({_numbers(keys)})"
            f" LIMIT {len(keys)}"
        )

    def whole_rows(self, keys: Iterable[int]) -> str:
        """Ask for all rows with one of these key hashes (signed): the texts of the key's forms, and
        then those of all columns, whole."""
        forms = self._expressions
        shown = [text_of(forms[i]) for i in self.key]
        shown += [text_of(quote_ident(name)) for name in self.columns]
        names = [f"t{n}" for n in range(len(shown))]
        image = _sent([forms[i] for i in self.key])
        return (
            f"SELECT {', '.join(f'i.{name}' for name in names)}"
            f" FROM (SELECT {', '.join(shown)}, {image} FROM {self.rows} OFFSET 0)"
            f" AS i({', '.join(names)}, key_image)"
            f" WHERE {_hash('i.key_image', KEY_SEED)} IN ({_numbers(keys)})"
        )

    def within(self, division: Division, blocks: Sequence[int]) -> TableStatements:
        """Return the statements for the rows of some blocks only, which an index may find. Where
        the division does not tell, they are for all rows."""
        if division.bounds is None:
            return self
        column = quote_ident(self.columns[division.column])
        ranges = [_between(column, low, high) for low, high in division.ranges(blocks)]
        word = "AND" if self.filtered else "WHERE"
        rows = f"{self.rows} {word} ({' OR '.join(ranges)})"
        return replace(self, rows=rows, filtered=True)

    def sample(self, step: int) -> str:
        """Ask for every ``step``-th value of the key's first column, in no order."""
        column = self._expressions[self.key[0]]
        return (
            f"SELECT s.k FROM (SELECT {column} AS k, pg_catalog.row_number() OVER () AS n"
            f" FROM {self.rows}) s WHERE s.n % {step} = 0"
        )

    @property
    def is_ordered(self) -> bool:
        """Whether blocks are ranges of the values of the key's first column."""
        return is_ordered(self.forms, self.key)

    def count(self) -> str:
        """Ask for the number of rows."""
        return f"SELECT pg_catalog.count(*) FROM {self.rows}"

    @property
    def _expressions(self) -> list[str]:
        return [
            form.expression(quote_ident(name))
            for name, form in zip(self.columns, self.forms, strict=True)
        ]

    @property
    def _image(self) -> str:
        expressions = self._expressions
        images = [_sent(expressions)]
        if self.key:
            images.append(_sent([expressions[i] for i in self.key]))
        return ", ".join(images)

    @property
    def _key_hash(self) -> str:
        if self.key:
            return _hash("i.key_image", KEY_SEED)
        return _hash("i.image", FIRST_SEED)

    def _hashed(self, division: Division) -> str:
        """Select block, key hash and both hashes of each row."""
        named = "bound, image" + (", key_image" if self.key else "")
        bound = "NULL::bigint"
        if division.bounds is not None:
            bound = self._expressions[division.column]
        inner = f"SELECT {bound}, {self._image} FROM {self.rows} OFFSET 0"
        return (
            f"SELECT {division.expression('i.bound', self._key_hash)} AS block,"
            f" {self._key_hash} AS key_hash, {_hash('i.image', FIRST_SEED)} AS first,"
            f" {_hash('i.image', SECOND_SEED)} AS second"
            f" FROM ({inner}) AS i({named})"
        )


def _between(column: str, low: int | None, high: int | None) -> str:
    parts = []
    if low is not None:
        parts.append(f"{column} >= {low}")
    if high is not None:
        parts.append(f"{column} < {high}")
    return f"({' AND '.join(parts) or 'true'})"


def shortened(text: str, encoded: bytes) -> str:
    """Return a value as it is shown, as the statement ``values`` gives it. ``encoded``: the text in
    UTF-8. Equal values have equal texts, different ones different texts."""
    if len(text) <= LONG_CHARACTERS:
        return text
    digest = hashlib.md5(encoded, usedforsecurity=False).hexdigest()
    return f"{text[:_SHOWN_CHARACTERS]}... (md5 {digest})"


def _text(value: str, *, whole: bool) -> str:
    text = f"pg_catalog.concat({value})"
    null = f"CASE WHEN {value} IS NOT DISTINCT FROM NULL THEN NULL"
    if whole:
        return f"{null} ELSE {text} END"
    return (
        f"{null} WHEN pg_catalog.length({text}) > {LONG_CHARACTERS}"
        f" THEN pg_catalog.left({text}, {_SHOWN_CHARACTERS}) || '... (md5 '"
        f" || pg_catalog.md5(pg_catalog.convert_to({text}, 'UTF8')) || ')'"
        f" ELSE {text} END"
    )


def _sent(expressions: Sequence[str]) -> str:
    return f"pg_catalog.record_send(ROW({', '.join(expressions)}))"


def _hash(image: str, seed: int) -> str:
    return f"pg_catalog.hash_record_extended(ROW({image}), {seed})"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"
