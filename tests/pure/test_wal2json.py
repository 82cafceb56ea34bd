"""wal2json's texts, in both formats, as wal2json 2.6 prints them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import UsageError
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.publish.decoding.decoded import DecodedChange, Transaction, Values
from wal2lake.publish.plugins.loading import load_plugin
from wal2lake.publish.plugins.port import Context, OutputPlugin

COLUMNS = (
    ColumnDef("a", Oid(23), not_null=True, default="nextval('s')"),
    ColumnDef("b", Oid(1043), typmod=34),
    ColumnDef("n", Oid(1700), typmod=(5 << 16 | 2) + 4),
    ColumnDef("ok", Oid(16)),
    ColumnDef("raw", Oid(17)),
)

TABLE = TableDef(Oid(7), "public", "t", Oid(10), COLUMNS, ("a",), "/lake/t")

RELATION = Relation(
    relid=Oid(7),
    namespace="public",
    name="t",
    identity=ReplicaIdentity.DEFAULT,
    columns=tuple(Column(c.name, c.type_oid, c.typmod, c.name == "a") for c in COLUMNS),
)

TRANSACTION = Transaction(
    Xid(712), Lsn(0x100), Lsn(0x200), Lsn(0x210), 1_500_000, "pg_16400", Lsn(5), 3
)

ROW: Values = (b"1", 'Ba"cküp\n'.encode(), b"2.34", b"t", b"\\x00ff")
OTHER: Values = (b"2", None, b"NaN", b"f", None)
KEY: Values = (b"1", None, None, None, None)


def said(
    *events: Callable[[OutputPlugin, Context], None], **options: str | None
) -> list[str]:
    """The messages of a transaction of these events; ``format_version`` is an option's name."""
    found: list[str] = []
    context = Context(
        "s",
        "wal2json",
        lambda payload, lsn, last: found.append(payload.decode()),
        lambda frames: None,
        lambda names, lsn: {},
        lambda relid: TABLE,
        lambda name: 3,
    )
    plugin = load_plugin("wal2json", ())
    plugin.startup(context, {k.replace("_", "-"): v for k, v in options.items()})
    plugin.begin(context, TRANSACTION)
    for event in events:
        event(plugin, context)
    plugin.commit(context, TRANSACTION)
    plugin.shutdown(context)
    return found


def change(
    op: str, new: Values | None, old: Values | None = None
) -> Callable[[OutputPlugin, Context], None]:
    one = DecodedChange(op, Lsn(0x180), new, old, is_key=True)
    return lambda plugin, context: plugin.change(context, TRANSACTION, RELATION, one)


def message(
    prefix: str, content: bytes, *, inside: bool = True
) -> Callable[[OutputPlugin, Context], None]:
    return lambda plugin, context: plugin.message(
        context, TRANSACTION if inside else None, Lsn(0x190), prefix, content
    )


def truncate(plugin: OutputPlugin, context: Context) -> None:
    plugin.truncate(context, TRANSACTION, (RELATION,), 0, Lsn(0x1A0))


INSERT = change("I", ROW)
UPDATE = change("U", OTHER, KEY)
IN_PLACE = change("U", ROW)
DELETE = change("D", None, KEY)


def test_format_1_is_an_object_for_each_transaction() -> None:
    assert said(INSERT, DELETE) == [
        '{"change":[{"kind":"insert","schema":"public","table":"t","columnnames":["a","b",'
        '"n","ok","raw"],"columntypes":["integer","character varying(30)","numeric(5,2)",'
        '"boolean","bytea"],"columnvalues":[1,"Ba\\"cküp\\n",2.34,true,"00ff"]},{"kind":'
        '"delete","schema":"public","table":"t","oldkeys":{"keynames":["a"],"keytypes":'
        '["integer"],"keyvalues":[1]}}]}'
    ]
    assert said() == ['{"change":[]}']
    assert said(truncate) == ['{"change":[]}']


@pytest.mark.parametrize("version", ["1", "2"])
def test_rows_that_nothing_identifies_are_left_out(version: str) -> None:
    columns = tuple(replace(column, is_key=False) for column in RELATION.columns)
    unknown = replace(RELATION, identity=ReplicaIdentity.NOTHING, columns=columns)

    def event(op: str, new: Values | None) -> Callable[[OutputPlugin, Context], None]:
        one = DecodedChange(op, Lsn(0x180), new, None, is_key=False)
        return lambda plugin, context: plugin.change(context, TRANSACTION, unknown, one)

    options = {"format_version": version, "include_transaction": "off"}
    (text,) = said(event("U", ROW), event("D", None), event("I", ROW), **options)
    assert text == said(INSERT, **options)[0]


def test_format_1_is_printed_prettily() -> None:
    (text,) = said(UPDATE, INSERT, pretty_print="on", include_pk=None, actions="update")
    assert text.split("\n") == [
        "{",
        '\t"change": [',
        "\t\t{",
        '\t\t\t"kind": "update",',
        '\t\t\t"schema": "public",',
        '\t\t\t"table": "t",',
        '\t\t\t"columnnames": ["a", "b", "n", "ok", "raw"],',
        '\t\t\t"columntypes": ["integer", "character varying(30)", "numeric(5,2)",'
        ' "boolean", "bytea"],',
        '\t\t\t"columnvalues": [2, null, null, false, null],',
        '\t\t\t"pk": {',
        '\t\t\t\t"pknames": ["a"],',
        '\t\t\t\t"pktypes": ["integer"]',
        "\t\t\t},",
        '\t\t\t"oldkeys": {',
        '\t\t\t\t"keynames": ["a"],',
        '\t\t\t\t"keytypes": ["integer"],',
        '\t\t\t\t"keyvalues": [1]',
        "\t\t\t}",
        "\t\t}",
        "\t]",
        "}",
    ]
    chunks = said(
        INSERT, DELETE, message("p", b"m"), pretty_print="1", write_in_chunks="1"
    )
    assert len(chunks) == 5
    assert chunks[0] == '{\n\t"change": [' and chunks[-1] == "\t]\n}"
    assert chunks[1].startswith('\t\t{\n\t\t\t"kind"')
    assert chunks[3] == (
        '\t\t,{\n\t\t\t"kind": "message",\n\t\t\t"transactional": true,'
        '\n\t\t\t"prefix": "p",\n\t\t\t"content": "m"\n\t\t}'
    )
    json.loads("".join(chunks))


def test_format_1_says_what_is_asked_for() -> None:
    (text,) = said(
        INSERT,
        include_xids="1",
        include_lsn="1",
        include_timestamp="1",
        include_origin="1",
        include_typmod="0",
        include_type_oids="1",
        include_column_positions="1",
        include_not_null="1",
        include_default="1",
        include_schemas="0",
        numeric_data_types_as_string="1",
    )
    assert text == (
        '{"xid":712,"nextlsn":"0/210","timestamp":"2000-01-01 00:00:01.5+00","origin":3,'
        '"change":[{"kind":"insert","table":"t","columnnames":["a","b","n","ok","raw"],'
        '"columntypes":["int4","varchar","numeric","bool","bytea"],"columntypeoids":[23,'
        '1043,1700,16,17],"columnpositions":[1,2,3,4,5],"columnoptionals":[false,true,true,'
        'true,true],"columndefaults":["nextval(\'s\')",null,null,null,null],"columnvalues":'
        '["1","Ba\\"cküp\\n","2.34",true,"00ff"]}]}'
    )


def test_format_2_is_an_object_for_each_event() -> None:
    outside = message("q", b"now\0x", inside=False)
    found = said(
        *(INSERT, UPDATE, IN_PLACE, DELETE, truncate, message("p", b"m"), outside),
        format_version="2",
        include_types="0",
    )
    assert found == [
        '{"action":"B"}',
        '{"action":"I","schema":"public","table":"t","columns":[{"name":"a","value":1},'
        '{"name":"b","value":"Ba\\"cküp\\n"},{"name":"n","value":2.34},{"name":"ok","value":'
        'true},{"name":"raw","value":"00ff"}]}',
        '{"action":"U","schema":"public","table":"t","columns":[{"name":"a","value":2},'
        '{"name":"b","value":null},{"name":"n","value":null},{"name":"ok","value":false},'
        '{"name":"raw","value":null}],"identity":[{"name":"a","value":1}]}',
        found[3],
        '{"action":"D","schema":"public","table":"t","identity":[{"name":"a","value":1}]}',
        '{"action":"T","schema":"public","table":"t"}',
        '{"action":"M","transactional":true,"prefix":"p","content":"m"}',
        '{"action":"M","transactional":false,"prefix":"q","content":"now"}',
        '{"action":"C"}',
    ]
    assert json.loads(found[3])["identity"] == [{"name": "a", "value": 1}]
    (event,) = said(
        DELETE,
        format_version=None,
        include_transaction="off",
        include_xids="1",
        include_timestamp="1",
        include_origin="1",
        include_lsn="1",
        include_pk="1",
    )
    assert event == (
        '{"action":"D","xid":712,"timestamp":"2000-01-01 00:00:01.5+00","origin":3,"lsn":'
        '"0/180","schema":"public","table":"t","identity":[{"name":"a","type":"integer",'
        '"value":1}],"pk":[{"name":"a","type":"integer"}]}'
    )
    begin, commit = said(format_version="2", include_lsn="1")
    assert begin == '{"action":"B","lsn":"0/200","nextlsn":"0/210"}'
    assert commit == '{"action":"C","lsn":"0/200","nextlsn":"0/210"}'


@pytest.mark.parametrize("pretty", [None, "1"])
def test_format_2_is_never_pretty(pretty: str | None) -> None:
    """Its objects are one line each; wal2json takes pretty-print and does nothing with it."""
    events = (INSERT, UPDATE, DELETE, truncate, message("p", b"m"))
    found = said(*events, format_version="2", pretty_print=pretty, include_pk="1")
    assert found == said(*events, format_version="2", include_pk="1")


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_type_whose_name_is_quoted_has_no_quotes_in_them(version: str) -> None:
    columns = (Column("c", Oid(18), -1, True), Column("cs", Oid(1002), -1, False))
    relation = replace(RELATION, columns=columns)
    one = DecodedChange("I", Lsn(0x180), (b"x", b"{x}"), None, is_key=False)
    (text,) = said(
        lambda plugin, context: plugin.change(context, TRANSACTION, relation, one),
        format_version=version,
        include_transaction="off",
    )
    if version == "1":
        types = json.loads(text)["change"][0]["columntypes"]
    else:
        types = [column["type"] for column in json.loads(text)["columns"]]
    assert types == ["char", '"char"[]']


def test_what_is_filtered() -> None:
    def kinds(**options: str | None) -> list[str]:
        events = (INSERT, DELETE, truncate, message("p", b""), message("q", b""))
        found = said(*events, format_version="2", include_transaction="0", **options)
        return [json.loads(one)["action"] for one in found]

    assert kinds() == ["I", "D", "T", "M", "M"]
    assert kinds(actions="insert, truncate") == ["I", "T", "M", "M"]
    assert kinds(filter_tables="public.t") == ["M", "M"]
    assert kinds(filter_tables="*.t , x.*") == ["M", "M"]
    assert kinds(filter_tables=r"public.t\ u") == ["I", "D", "T", "M", "M"]
    assert kinds(add_tables="other.*") == ["M", "M"]
    assert kinds(add_tables="public.*") == ["I", "D", "T", "M", "M"]
    assert kinds(filter_msg_prefixes="p") == ["I", "D", "T", "M"]
    assert kinds(add_msg_prefixes="x,y") == ["I", "D", "T"]
    plugin = load_plugin("wal2json", ())
    context = Context(
        "s",
        "wal2json",
        lambda *_: None,
        lambda _: None,
        lambda *_: {},
        lambda _: None,
        lambda name: {"pg_1": 1, "pg_2": 2}[name],
    )
    plugin.startup(context, {"filter-origins": "0, 2, 3"})
    found = [plugin.filter_by_origin(name) for name in (None, "pg_1", "pg_2")]
    assert found == [False, False, True]


@pytest.mark.parametrize(
    ("name", "value", "text", "sqlstate"),
    [
        ("nonsense", None, 'option "nonsense" = "(null)" is unknown', "22023"),
        (
            "include-xids",
            "maybe",
            'could not parse value "maybe" for parameter "include-xids"',
            "22023",
        ),
        (
            "include-unchanged-toast",
            "1",
            'parameter "include-unchanged-toast" was deprecated',
            "42602",
        ),
        (
            "format-version",
            "3",
            "client sent format_version=3 but we only support format 2 or lower",
            "0A000",
        ),
        (
            "format-version",
            "0",
            "client sent format_version=0 but we only support format 1 or higher",
            "0A000",
        ),
        (
            "actions",
            "insert,upsert",
            'could not parse value "upsert" for parameter "actions"',
            "22023",
        ),
        (
            "filter-tables",
            "t",
            'could not parse value "t" for parameter "filter-tables"',
            "42602",
        ),
        (
            "add-msg-prefixes",
            "a,,b",
            'could not parse value "a,,b" for parameter "add-msg-prefixes"',
            "42602",
        ),
    ],
)
def test_bad_options(name: str, value: str | None, text: str, sqlstate: str) -> None:
    with pytest.raises(UsageError) as refused:
        said(**{name: value})
    assert (refused.value.message, refused.value.sqlstate) == (text, sqlstate)
