"""Writes transactions as JSON, in wal2json's two formats.

    format-version 1    one object for each transaction, its changes in an array
    format-version 2    one object for each event: B, I, U, D, T, M, C

Options as in wal2json. ``include-unchanged-toast``, which wal2json has removed, is missing. A lake
table has every row complete, so no value is left out as unchanged. Defaults and primary keys are
those of the table's present definition. Type modifiers are those of the time of the change.

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
from wal2lake.publish.decoding.decoded import Transaction
from wal2lake.publish.plugins.port import Base, Context, DecodedChange, Values
from wal2lake.publish.plugins.test_decoding import boolean, timestamp

_NUMBERS: Final = frozenset({20, 21, 23, 26, 700, 701, 1700})

_BOOL, _BYTEA = 16, 17

_NUMBER: Final = re.compile(rb"[0-9+\-eE.]+")

_FORMATS: Final = (1, 2)

_ACTIONS: Final = {"insert": "I", "update": "U", "delete": "D", "truncate": "T"}


@dataclass(slots=True)
class _Options:
    """Options by name, with ``_`` for ``-``."""

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
    option.name.replace("_", "-")
    for option in fields(_Options)
    if option.type == "bool"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """Some columns of a row, as parallel sequences."""

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
    """Number of changes of the transaction so far."""
    _waiting: list[str] = field(default_factory=list)
    """Parts of the single message of format 1."""
    _origins: Callable[[str], int] = lambda name: 0

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Read the options."""
        for name, value in options.items():
            self._set_option(name, value)
        self._origins = context.origin_number

    def _set_option(self, name: str, value: str | None) -> None:
        parsed = self._options
        attribute = name.replace("-", "_")
        if name in _SWITCHES:
            setattr(parsed, attribute, boolean(name, value))
        elif name == "include-unchanged-toast":
            raise UsageError(f'parameter "{name}" was deprecated', sqlstate="42602")
        elif name == "actions":
            if value is not None:
                parsed.actions = frozenset(_action(a) for a in _listed(name, value))
        elif name == "filter-origins":
            listed = _listed(name, value or "")
            if not all(part.isascii() and part.isdecimal() for part in listed):
                raise _unparsed(name, value, "42602")
            parsed.filter_origins = frozenset(map(int, listed))
        elif name in ("filter-tables", "add-tables"):
            listed = _listed(name, value or "", keep=True)
            setattr(parsed, attribute, tuple(_table(name, part) for part in listed))
        elif name in ("filter-msg-prefixes", "add-msg-prefixes"):
            setattr(parsed, attribute, frozenset(_listed(name, value or "", keep=True)))
        elif name == "format-version":
            parsed.format_version = _format_version(name, value)
        else:
            raise UsageError(
                f'option "{name}" = "{"(null)" if value is None else value}" is unknown',
                sqlstate="22023",
            )

    def filter_by_origin(self, origin: str | None) -> bool:
        """Leave out the origins of filter-origins. Local transactions are never left out."""
        unwanted = self._options.filter_origins
        return bool(unwanted and origin) and self._origin(origin) in unwanted

    def _origin(self, name: str | None) -> int:
        return 0 if name is None else self._origins(name)

    # ---- transactions ----------------------------------------------------------------

    def begin(self, context: Context, transaction: Transaction) -> None:
        """Write ``{"change":[`` or ``{"action":"B"}``."""
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
        """Write ``]}`` or ``{"action":"C"}``."""
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
        """Write a part of a transaction in format 1."""
        if self._options.write_in_chunks:
            context.write(text.encode(), lsn, True)
        else:
            self._waiting.append(text)

    def _element(self, context: Context, lines: Iterable[str], lsn: Lsn) -> None:
        """Write an element of format 1's array. ``lines``: lines of an object, without commas."""
        tab, line, _ = self._blanks()
        self._changes += 1
        before = "" if self._options.write_in_chunks else line
        comma = "," if self._changes > 1 else ""
        inner = f",{line}".join(tab * 3 + member for member in lines)
        self._put(
            context,
            f"{before}{tab * 2}{comma}{{{line}{inner}{line}{tab * 2}}}",
            lsn,
        )

    def _blanks(self) -> tuple[str, str, str]:
        """Return the blanks for one level of indentation, at a line's end, and after a colon or
        comma."""
        return ("\t", "\n", " ") if self._options.pretty_print else ("", "", "")

    def _event(
        self,
        context: Context,
        action: str,
        transaction: Transaction | None,
        lsn: Lsn,
        rest: str,
    ) -> None:
        """Write an object of format 2: a line without blanks, even with ``pretty-print``."""
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
        """Write a row with its identity. An UPDATE or DELETE without a replica identity is left
        out."""
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
        """Yield schema and table. ``space`` follows a colon."""
        if self._options.include_schemas:
            yield f'"schema":{space}{_string(relation.namespace)}'
        yield f'"table":{space}{_string(relation.name)}'

    def _nested(self, name: str, lines: Sequence[str]) -> str:
        tab, line, space = self._blanks()
        inner = f",{line}".join(tab * 4 + member for member in lines)
        return f'"{name}":{space}{{{line}{inner}{line}{tab * 3}}}'

    def _lists(self, row: _Row, kind: str) -> list[str]:
        """Return the arrays of names, types, ... values. ``kind``: column, key or pk."""
        options = self._options
        whole = kind == "column"
        lists = [(f"{kind}names", [_string(c.name) for c in row.columns])]
        if options.include_types or kind == "pk":
            typed = row.columns if options.include_types else ()
            lists.append((f"{kind}types", [self._type(c) for c in typed]))
        if options.include_type_oids and kind != "pk":
            oids = [str(int(c.type_oid)) for c in row.columns]
            lists.append((f"{kind}typeoids", oids))
        if whole and options.include_column_positions:
            lists.append(("columnpositions", list(map(str, row.positions))))
        if whole and options.include_not_null:
            shown = map(_optional, row.definitions) if options.include_types else ()
            lists.append(("columnoptionals", list(shown)))
        if whole and options.include_default:
            lists.append(("columndefaults", list(map(_default, row.definitions))))
        if kind != "pk":
            pairs = zip(row.columns, row.values, strict=True)
            lists.append((f"{kind}values", [self._value(c, v) for c, v in pairs]))
        _, _, space = self._blanks()
        return [
            f'"{name}":{space}[{f",{space}".join(values)}]' for name, values in lists
        ]

    def _type(self, column: Column) -> str:
        if self._options.include_typmod or self._options.format_version == 2:
            name = format_type(column.type_oid, column.typmod)
            # A name that is quoted in SQL has JSON's quotes already, unless an array's brackets
            # follow.
            return name if re.fullmatch('".*"', name, re.DOTALL) else _string(name)
        built_in = BUILT_IN.get(column.type_oid)
        return _string(
            format_type(column.type_oid) if built_in is None else built_in.name
        )

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
        text = "".join(f",{member}" for member in self._named(relation))
        if change.new is not None:
            row = _row(context, relation, change.new)
            text += f',"columns":[{self._objects(row, whole=True)}]'
        identifying_values = change.new if change.old is None else change.old
        if change.op != "I" and identifying_values is not None:
            row = _row(context, relation, identifying_values, identity=True)
            text += f',"identity":[{self._objects(row)}]'
        if self._options.include_pk:
            key = self._primary_key(context, relation)
            text += f',"pk":[{self._objects(key, values=False) if key else ""}]'
        self._event(context, change.op, transaction, change.lsn, text)

    def _objects(self, row: _Row, *, whole: bool = False, values: bool = True) -> str:
        """Build format 2's columns. ``whole``: whether they are of a new row."""
        options = self._options
        objects = []
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
            objects.append(text + "}")
        return ",".join(objects)

    def _primary_key(self, context: Context, relation: Relation) -> _Row | None:
        """Return the primary key; None if it is not requested, or there is none."""
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
        """Write TRUNCATE, which format 1 leaves out."""
        if self._options.format_version == 1 or "T" not in self._options.actions:
            return
        for relation in relations:
            if self._wanted(relation):
                text = "".join(f",{member}" for member in self._named(relation))
                self._event(context, "T", transaction, lsn, text)

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """Write a message, unless its prefix is filtered. A non-transactional message is an object
        of its own."""
        options = self._options
        added = options.add_msg_prefixes
        if prefix in options.filter_msg_prefixes or (added and prefix not in added):
            return
        inside = "true" if transaction is not None else "false"
        # As a C string, the content ends at its first zero byte.
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
        inner = f",{line}".join(tab * 3 + member for member in lines)
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
    """Build a row. ``nulls``: whether to include columns that are null. ``identity``: only columns
    of the replica identity."""
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


def _picked(row: _Row, flags: Sequence[bool]) -> _Row:
    indexes = [i for i, flag in enumerate(flags) if flag]
    return _Row(
        [row.columns[i] for i in indexes],
        [row.values[i] for i in indexes],
        [row.positions[i] for i in indexes],
        [row.definitions[i] for i in indexes],
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
    """Split a value at commas. ``keep``: whether to keep backslashes, which escape the next
    character."""
    text = value.strip()
    if not text:
        return []
    parts = re.findall(r"\s*((?:\\.|[^\\,\s])+)\s*(,|$)", text, re.DOTALL)
    again = "".join(re.sub(r"\s", "", part + comma) for part, comma in parts)
    if again != re.sub(r"\s", "", text) or text.endswith(","):
        raise _unparsed(name, value, "42602")
    return [part if keep else re.sub(r"\\(.)", r"\1", part) for part, _ in parts]


def _action(word: str) -> str:
    if word not in _ACTIONS:
        raise _unparsed("actions", word, "22023")
    return _ACTIONS[word]


def _table(option: str, text: str) -> tuple[str, str]:
    """Parse ``schema.table``. An asterisk stands for all schemas or tables."""
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
