"""Transactions as JSON, in wal2json's two formats.

    format-version 1    one object for each transaction, its changes in an array
    format-version 2    one object for each event: B, I, U, D, T, M, C

Options as there, but for ``include-unchanged-toast``, which is gone there, too. A lake table has
each row whole, so no value is left out as unchanged. Defaults are those of the table's definition
in the catalog now, and so are primary keys; type modifiers are in what changes were written with.

Source: README.md and expected/ of wal2json 2.6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from wal2lake.catalog import ColumnDef
from wal2lake.errors import UsageError
from wal2lake.model import Column, Lsn, Relation
from wal2lake.pgtypes.registry.pg_type import BUILT_IN, format_type
from wal2lake.publish.decoding.changes import Transaction
from wal2lake.publish.plugins.port import Base, Context, DecodedChange, Values
from wal2lake.publish.plugins.test_decoding import boolean, timestamp

_NUMBERS: Final = frozenset({20, 21, 23, 26, 700, 701, 1700})

_BOOL, _BYTEA = 16, 17

_NUMBER: Final = re.compile(rb"[0-9+\-eE.]+")

_FORMATS: Final = (1, 2)

_ACTIONS: Final = {"insert": "I", "update": "U", "delete": "D", "truncate": "T"}


@dataclass(slots=True)
class _Options:
    """By their names, ``-`` for ``_``."""

    include_transaction: bool = True
    include_xids: bool = False
    include_timestamp: bool = False
    include_pk: bool = False
    include_origin: bool = False
    include_schemas: bool = True
    include_types: bool = True
    include_type_oids: bool = False
    include_typmod: bool = True
    include_domain_data_type: bool = False
    include_column_positions: bool = False
    include_not_null: bool = False
    include_default: bool = False
    numeric_data_types_as_string: bool = False
    pretty_print: bool = False
    write_in_chunks: bool = False
    include_lsn: bool = False
    format_version: int = 1
    actions: frozenset[str] = frozenset("IUDT")
    filter_origins: frozenset[int] = frozenset()
    filter_tables: tuple[tuple[str, str], ...] = ()
    add_tables: tuple[tuple[str, str], ...] = (("*", "*"),)
    filter_msg_prefixes: frozenset[str] = frozenset()
    add_msg_prefixes: frozenset[str] = frozenset()


_SWITCHES: Final = frozenset(
    one.name.replace("_", "-") for one in fields(_Options) if one.type == "bool"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """Some columns of a row, side by side."""

    columns: Sequence[Column]
    values: Sequence[bytes | None]
    positions: Sequence[int]
    definitions: Sequence[ColumnDef | None]


@dataclass(slots=True)
class Wal2Json(Base):
    """The plugin wal2json; the module describes it."""

    is_text = True

    _options: _Options = field(default_factory=_Options)
    _changes: int = 0
    """Changes of the transaction so far."""
    _waiting: list[str] = field(default_factory=list)
    """Parts of format 1's only message."""
    _origins: Callable[[str], int] = lambda name: 0

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Take the options."""
        for name, value in options.items():
            self._take(name, value)
        self._origins = context.origin_number

    def _take(self, name: str, value: str | None) -> None:
        found = self._options
        attribute = name.replace("-", "_")
        if name in _SWITCHES:
            setattr(found, attribute, boolean(name, value))
        elif name == "include-unchanged-toast":
            raise UsageError(f'parameter "{name}" was deprecated', sqlstate="42602")
        elif name == "actions":
            if value is not None:
                found.actions = frozenset(_action(a) for a in _listed(name, value))
        elif name == "filter-origins":
            listed = _listed(name, value or "")
            if not all(one.isascii() and one.isdecimal() for one in listed):
                raise _unparsed(name, value, "42602")
            found.filter_origins = frozenset(map(int, listed))
        elif name in ("filter-tables", "add-tables"):
            listed = _listed(name, value or "", keep=True)
            setattr(found, attribute, tuple(_table(name, one) for one in listed))
        elif name in ("filter-msg-prefixes", "add-msg-prefixes"):
            setattr(found, attribute, frozenset(_listed(name, value or "", keep=True)))
        elif name == "format-version":
            found.format_version = _format_version(name, value)
        else:
            raise UsageError(
                f'option "{name}" = "{"(null)" if value is None else value}" is unknown',
                sqlstate="22023",
            )

    def filter_by_origin(self, origin: str | None) -> bool:
        """filter-origins; what was written here is never left out."""
        unwanted = self._options.filter_origins
        return bool(unwanted and origin) and self._origin(origin) in unwanted

    def _origin(self, name: str | None) -> int:
        return 0 if name is None else self._origins(name)

    # ---- transactions ----------------------------------------------------------------

    def begin(self, context: Context, transaction: Transaction) -> None:
        """``{"change":[`` or ``{"action":"B"}``."""
        options = self._options
        self._changes = 0
        if options.format_version == 2:
            if options.include_transaction:
                self._event(context, "B", transaction, transaction.commit_lsn, "")
            return
        tab, line, space = self._blanks()
        text = f"{{{line}"
        if options.include_xids:
            text += f'{tab}"xid":{space}{int(transaction.xid)},{line}'
        if options.include_lsn:
            text += f'{tab}"nextlsn":{space}"{transaction.end_lsn}",{line}'
        if options.include_timestamp:
            shown = timestamp(transaction.commit_time)
            text += f'{tab}"timestamp":{space}"{shown}",{line}'
        if options.include_origin:
            text += f'{tab}"origin":{space}{self._origin(transaction.origin)},{line}'
        self._put(context, f'{text}{tab}"change":{space}[', transaction.first_lsn)

    def commit(self, context: Context, transaction: Transaction) -> None:
        """``]}`` or ``{"action":"C"}``."""
        options = self._options
        if options.format_version == 2:
            if options.include_transaction:
                self._event(context, "C", transaction, transaction.commit_lsn, "")
            return
        tab, line, _ = self._blanks()
        before = "" if options.write_in_chunks else line
        self._put(context, f"{before}{tab}]{line}}}", transaction.end_lsn)
        if not options.write_in_chunks:
            text = "".join(self._waiting)
            self._waiting.clear()
            context.write(text.encode(), transaction.end_lsn, True)

    def _put(self, context: Context, text: str, lsn: Lsn) -> None:
        """A part of what format 1 says of a transaction."""
        if self._options.write_in_chunks:
            context.write(text.encode(), lsn, True)
        else:
            self._waiting.append(text)

    def _element(self, context: Context, lines: Iterable[str], lsn: Lsn) -> None:
        """One more of format 1's array; ``lines`` of an object, without their commas."""
        tab, line, _ = self._blanks()
        self._changes += 1
        before = "" if self._options.write_in_chunks else line
        comma = "," if self._changes > 1 else ""
        inner = f",{line}".join(tab * 3 + one for one in lines)
        self._put(
            context,
            f"{before}{tab * 2}{comma}{{{line}{inner}{line}{tab * 2}}}",
            lsn,
        )

    def _blanks(self) -> tuple[str, str, str]:
        """Blanks of one step inwards, at a line's end, after a colon or comma."""
        return ("\t", "\n", " ") if self._options.pretty_print else ("", "", "")

    def _event(
        self,
        context: Context,
        action: str,
        transaction: Transaction | None,
        lsn: Lsn,
        rest: str,
    ) -> None:
        """One object of format 2, a line without blanks whatever ``pretty-print`` says."""
        options = self._options
        text = f'{{"action":"{action}"'
        if options.include_xids:
            xid = None if transaction is None else int(transaction.xid)
            text += f',"xid":{_or_null(xid)}'
        if options.include_timestamp:
            shown = (
                "null"
                if transaction is None
                else f'"{timestamp(transaction.commit_time)}"'
            )
            text += f',"timestamp":{shown}'
        if options.include_origin:
            origin = None if transaction is None else self._origin(transaction.origin)
            text += f',"origin":{_or_null(origin)}'
        if options.include_lsn:
            text += f',"lsn":"{lsn}"'
            if transaction is not None and action in "BC":
                text += f',"nextlsn":"{transaction.end_lsn}"'
        context.write(f"{text}{rest}}}".encode(), lsn, True)

    # ---- rows ------------------------------------------------------------------------

    def change(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: DecodedChange,
    ) -> None:
        """A row, with what identifies it; an UPDATE or DELETE where nothing does is left out."""
        if change.op not in self._options.actions or not self._wanted(relation):
            return
        if change.op != "I" and not relation.key_positions:
            return
        if self._options.format_version == 2:
            self._change_event(context, transaction, relation, change)
        else:
            self._change_element(context, relation, change)

    def _wanted(self, relation: Relation) -> bool:
        def named(tables: Iterable[tuple[str, str]]) -> bool:
            return any(
                schema in ("*", relation.namespace) and name in ("*", relation.name)
                for schema, name in tables
            )

        options = self._options
        return not named(options.filter_tables) and named(options.add_tables)

    def _change_element(
        self, context: Context, relation: Relation, change: DecodedChange
    ) -> None:
        _, _, space = self._blanks()
        words = {"I": "insert", "U": "update", "D": "delete"}
        named = self._named(relation, space)
        lines = [f'"kind":{space}"{words[change.op]}"', *named]
        if change.new is not None:
            lines += self._lists(_row(context, relation, change.new), "column")
        key = self._primary_key(context, relation)
        if key:
            lines.append(self._nested("pk", self._lists(key, "pk")))
        if change.op == "U" and change.old is not None:
            old = _row(context, relation, change.old, nulls=False)
            lines.append(self._nested("oldkeys", self._lists(old, "key")))
        elif change.op != "I":
            values = change.new if change.old is None else change.old
            old = _row(context, relation, values, nulls=False, identity=True)
            lines.append(self._nested("oldkeys", self._lists(old, "key")))
        self._element(context, lines, change.lsn)

    def _named(self, relation: Relation, space: str = "") -> Iterator[str]:
        """Schema and table; ``space`` behind a colon."""
        if self._options.include_schemas:
            yield f'"schema":{space}{_string(relation.namespace)}'
        yield f'"table":{space}{_string(relation.name)}'

    def _nested(self, name: str, lines: Sequence[str]) -> str:
        tab, line, space = self._blanks()
        inner = f",{line}".join(tab * 4 + one for one in lines)
        return f'"{name}":{space}{{{line}{inner}{line}{tab * 3}}}'

    def _lists(self, row: _Row, kind: str) -> list[str]:
        """Names, types, ... values, each an array with its name; ``kind``: column, key or pk."""
        options = self._options
        whole = kind == "column"
        found = [(f"{kind}names", [_string(c.name) for c in row.columns])]
        if options.include_types or kind == "pk":
            typed = row.columns if options.include_types else ()
            found.append((f"{kind}types", [self._type(c) for c in typed]))
        if options.include_type_oids and kind != "pk":
            oids = [str(int(c.type_oid)) for c in row.columns]
            found.append((f"{kind}typeoids", oids))
        if whole and options.include_column_positions:
            found.append(("columnpositions", list(map(str, row.positions))))
        if whole and options.include_not_null:
            shown = map(_optional, row.definitions) if options.include_types else ()
            found.append(("columnoptionals", list(shown)))
        if whole and options.include_default:
            found.append(("columndefaults", list(map(_default, row.definitions))))
        if kind != "pk":
            pairs = zip(row.columns, row.values, strict=True)
            found.append((f"{kind}values", [self._value(c, v) for c, v in pairs]))
        _, _, space = self._blanks()
        return [
            f'"{name}":{space}[{f",{space}".join(values)}]' for name, values in found
        ]

    def _type(self, column: Column) -> str:
        if self._options.include_typmod or self._options.format_version == 2:
            name = format_type(column.type_oid, column.typmod)
            # A name that is quoted in SQL has JSON's quotes already; of an array they are inside.
            return name if re.fullmatch('".*"', name, re.DOTALL) else _string(name)
        known = BUILT_IN.get(column.type_oid)
        return _string(format_type(column.type_oid) if known is None else known.name)

    def _value(self, column: Column, value: bytes | None) -> str:
        oid = int(column.type_oid)
        if value is None:
            return "null"
        if oid == _BOOL:
            return "true" if value == b"t" else "false"
        if oid == _BYTEA:
            return _string(value[2:].decode())
        if oid in _NUMBERS and not self._options.numeric_data_types_as_string:
            # JSON has neither NaN nor Infinity.
            return value.decode() if _NUMBER.fullmatch(value) else "null"
        return _string(value.decode())

    def _change_event(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: DecodedChange,
    ) -> None:
        text = "".join(f",{one}" for one in self._named(relation))
        if change.new is not None:
            row = _row(context, relation, change.new)
            text += f',"columns":[{self._objects(row, whole=True)}]'
        known = change.new if change.old is None else change.old
        if change.op != "I" and known is not None:
            row = _row(context, relation, known, identity=True)
            text += f',"identity":[{self._objects(row)}]'
        if self._options.include_pk:
            key = self._primary_key(context, relation)
            text += f',"pk":[{self._objects(key, values=False) if key else ""}]'
        self._event(context, change.op, transaction, change.lsn, text)

    def _objects(self, row: _Row, *, whole: bool = False, values: bool = True) -> str:
        """Format 2's columns; ``whole``: of a new row."""
        options = self._options
        found = []
        for column, value, position, definition in zip(
            row.columns, row.values, row.positions, row.definitions, strict=True
        ):
            text = f'{{"name":{_string(column.name)}'
            if options.include_types:
                text += f',"type":{self._type(column)}'
            if options.include_type_oids:
                text += f',"typeoid":{int(column.type_oid)}'
            if values:
                text += f',"value":{self._value(column, value)}'
            if whole and options.include_not_null:
                text += f',"optional":{_optional(definition)}'
            if whole and options.include_column_positions:
                text += f',"position":{position}'
            if whole and options.include_default:
                text += f',"default":{_default(definition)}'
            found.append(text + "}")
        return ",".join(found)

    def _primary_key(self, context: Context, relation: Relation) -> _Row | None:
        """None: it is not asked for, or there is none."""
        table = context.table(relation.relid) if self._options.include_pk else None
        if table is None or not table.key:
            return None
        nothing = (None,) * len(relation.columns)
        row = _row(context, relation, nothing)
        return _picked(row, [c.name in table.key for c in row.columns])

    # ---- other events ----------------------------------------------------------------

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """Format 1 says nothing of it."""
        if self._options.format_version == 1 or "T" not in self._options.actions:
            return
        for relation in relations:
            if self._wanted(relation):
                text = "".join(f",{one}" for one in self._named(relation))
                self._event(context, "T", transaction, lsn, text)

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """Write a message with a wanted prefix; one outside of a transaction is an object alone."""
        options = self._options
        added = options.add_msg_prefixes
        if prefix in options.filter_msg_prefixes or (added and prefix not in added):
            return
        inside = "true" if transaction is not None else "false"
        # Text in C: it ends at its first zero byte.
        shown = _string(content.split(b"\0", 1)[0].decode(errors="replace"))
        if options.format_version == 2:
            text = f',"transactional":{inside},"prefix":{_string(prefix)},"content":{shown}'
            self._event(context, "M", transaction, lsn, text)
            return
        tab, line, space = self._blanks()
        lines = [
            f'"kind":{space}"message"',
            f'"transactional":{space}{inside}',
            f'"prefix":{space}{_string(prefix)}',
            f'"content":{space}{shown}',
        ]
        if transaction is not None:
            self._element(context, lines, lsn)
            return
        inner = f",{line}".join(tab * 3 + one for one in lines)
        text = (
            f'{{{line}{tab}"change":{space}[{line}{tab * 2}{{{line}{inner}{line}'
            f"{tab * 2}}}{line}{tab}]{line}}}"
        )
        context.write(text.encode(), lsn, True)


def _row(
    context: Context,
    relation: Relation,
    values: Values | None,
    *,
    nulls: bool = True,
    identity: bool = False,
) -> _Row:
    """``nulls``: columns that are null, too; ``identity``: columns of the replica identity only."""
    assert values is not None
    table = context.table(relation.relid)
    definitions = {} if table is None else {c.name: c for c in table.columns}
    row = _Row(
        relation.columns,
        values,
        range(1, len(relation.columns) + 1),
        [definitions.get(column.name) for column in relation.columns],
    )
    return _picked(
        row,
        [
            (column.is_key or not identity) and (nulls or value is not None)
            for column, value in zip(relation.columns, values, strict=True)
        ],
    )


def _picked(row: _Row, wanted: Sequence[bool]) -> _Row:
    at = [i for i, one in enumerate(wanted) if one]
    return _Row(
        [row.columns[i] for i in at],
        [row.values[i] for i in at],
        [row.positions[i] for i in at],
        [row.definitions[i] for i in at],
    )


def _optional(definition: ColumnDef | None) -> str:
    return "false" if definition is not None and definition.not_null else "true"


def _default(definition: ColumnDef | None) -> str:
    if definition is None or definition.default is None:
        return "null"
    return _string(definition.default)


def _or_null(number: int | None) -> str:
    return "null" if number is None else str(number)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# ---- options -----------------------------------------------------------------------------


def _unparsed(name: str, value: str | None, sqlstate: str) -> UsageError:
    return UsageError(
        f'could not parse value "{value}" for parameter "{name}"', sqlstate=sqlstate
    )


def _listed(name: str, value: str, *, keep: bool = False) -> list[str]:
    """Split a value at commas. ``keep``: a backslash, which hides the character behind it,
    stays."""
    text = value.strip()
    if not text:
        return []
    found = re.findall(r"\s*((?:\\.|[^\\,\s])+)\s*(,|$)", text, re.DOTALL)
    again = "".join(re.sub(r"\s", "", one + comma) for one, comma in found)
    if again != re.sub(r"\s", "", text) or text.endswith(","):
        raise _unparsed(name, value, "42602")
    return [one if keep else re.sub(r"\\(.)", r"\1", one) for one, _ in found]


def _action(word: str) -> str:
    if word not in _ACTIONS:
        raise _unparsed("actions", word, "22023")
    return _ACTIONS[word]


def _table(option: str, text: str) -> tuple[str, str]:
    """``schema.table``; an asterisk is all of them, and not the name of one."""
    parts = re.fullmatch(r"((?:\\.|[^\\.])+)\.((?:\\.|[^\\.])+)", text, re.DOTALL)
    if parts is None:
        raise _unparsed(option, text, "42602")
    schema, name = (re.sub(r"\\(.)", r"\1", part) for part in parts.groups())
    return schema, name


def _format_version(name: str, value: str | None) -> int:
    if value is None:
        return _FORMATS[-1]
    try:
        number = int(value)
    except ValueError:
        raise _unparsed(name, value, "22023") from None
    if number not in _FORMATS:
        bound, word = (
            (_FORMATS[-1], "lower")
            if number > _FORMATS[-1]
            else (_FORMATS[0], "higher")
        )
        raise UsageError(
            f"client sent format_version={number} but we only support format {bound} or"
            f" {word}",
            sqlstate="0A000",
        )
    return number
