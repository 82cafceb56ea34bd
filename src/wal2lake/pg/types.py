"""Reads types that are not built in from a publisher's catalog.

In: a session. Out: ``RemoteType`` values, for the decoders of their binary form; the labels of
enums, which ALTER TYPE may rename. Called by ``publisher``.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.model import EnumColumns, EnumLabel, Oid
from wal2lake.pg.connection import Session
from wal2lake.pgtypes import FIRST_NORMAL_OID, MONEY_SAMPLES, RemoteType, money_type


def describe_types(session: Session) -> tuple[RemoteType, ...]:
    """Return every type that is not built in, and money with its format.

    Row types of tables are omitted unless a column has the type.
    """
    rows = session.query(
        "SELECT t.oid, n.nspname || '.' || t.typname,"
        # A domain over an array has the output function of the array.
        " CASE WHEN t.typtype <> 'd'"
        " AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc"
        " THEN 'a'"
        # A user-defined type may have an extension's name, such as citext.
        " WHEN t.typtype = 'b' AND EXISTS (SELECT FROM pg_catalog.pg_depend d"
        " JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid"
        " WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass"
        " AND d.objid = t.oid AND d.deptype = 'e'"
        " AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass"
        " AND x.extname = t.typname) THEN 'x'"
        " ELSE t.typtype END,"
        " t.typsend <> 0, CASE t.typtype WHEN 'd' THEN t.typbasetype"
        " WHEN 'r' THEN r.rngsubtype WHEN 'm' THEN m.rngtypid"
        " ELSE t.typelem END,"
        " (SELECT pg_catalog.string_agg(a.atttypid::pg_catalog.text, ' '"
        " ORDER BY a.attnum) FROM pg_catalog.pg_attribute a"
        " WHERE a.attrelid = t.typrelid AND a.attnum > 0"
        " AND NOT a.attisdropped), t.typdelim"
        " FROM pg_catalog.pg_type t"
        " JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace"
        " LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid"
        " LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = t.oid"
        " LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem"
        f" WHERE t.oid >= {FIRST_NORMAL_OID} AND t.typtype <> 'p'"
        " AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_type own ON own.oid = c.reltype"
        " WHERE c.relkind <> 'c'"
        " AND c.oid = COALESCE(NULLIF(t.typrelid, 0), e.typrelid)"
        " AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a"
        " WHERE a.atttypid IN (own.oid, own.typarray)))"
        " ORDER BY t.oid"
    )
    return _money(session), *(
        RemoteType(
            oid=Oid(int(str(r[0]))),
            name=str(r[1]),
            kind=str(r[2]),
            sent=r[3] == "t",
            part=Oid(int(r[4] or 0)),
            attributes=tuple(Oid(int(a)) for a in (r[5] or "").split()),
            delimiter=str(r[6]),
        )
        for r in rows
    )


def _money(session: Session) -> RemoteType:
    amounts = (f"({n})::pg_catalog.int8::pg_catalog.money" for n in MONEY_SAMPLES)
    (samples,) = session.query(f"SELECT {', '.join(amounts)}")
    return money_type([str(text) for text in samples])


def describe_enums(session: Session, relids: Sequence[Oid]) -> EnumColumns:
    """Return the enum types that columns of tables (by OID) contain, and their labels.

    A column contains an enum as its type or below it: under a domain, as an array's element, a
    composite type's attribute or a range's bound, nested to any depth. A single statement reads
    all of them, so they are consistent.
    """
    if not relids:
        return EnumColumns({}, {})
    numbers = ", ".join(str(int(relid)) for relid in relids)
    # UNION, not UNION ALL: a composite type may hold arrays of itself.
    rows = session.query(
        "WITH RECURSIVE below(relid, attnum, typid) AS ("
        "SELECT a.attrelid, a.attnum, a.atttypid FROM pg_catalog.pg_attribute a"
        f" WHERE a.attrelid IN ({numbers}) AND a.attnum > 0 AND NOT a.attisdropped"
        f" AND a.atttypid >= {FIRST_NORMAL_OID}"
        " UNION SELECT below.relid, below.attnum, part.typid FROM below"
        " JOIN pg_catalog.pg_type t ON t.oid = below.typid"
        " CROSS JOIN LATERAL (SELECT t.typbasetype AS typid"
        " UNION ALL SELECT t.typelem"
        " UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r"
        " WHERE r.rngtypid = t.oid"
        " UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r"
        " WHERE r.rngmultitypid = t.oid"
        " UNION ALL SELECT c.atttypid FROM pg_catalog.pg_attribute c"
        " WHERE t.typtype = 'c' AND c.attrelid = t.typrelid AND c.attnum > 0"
        f" AND NOT c.attisdropped) part WHERE part.typid >= {FIRST_NORMAL_OID})"
        " SELECT e.enumtypid, pg_catalog.quote_ident(n.nspname) || '.'"
        " || pg_catalog.quote_ident(t.typname), e.oid, e.enumlabel,"
        " below.relid, below.attnum FROM below"
        " JOIN pg_catalog.pg_enum e ON e.enumtypid = below.typid"
        " JOIN pg_catalog.pg_type t ON t.oid = e.enumtypid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace"
    )
    labels: dict[Oid, EnumLabel] = {}
    columns: dict[Oid, set[tuple[Oid, int]]] = {}
    for type_text, type_name, oid, label, relid, number in rows:
        type_oid = Oid(int(str(type_text)))
        labels[Oid(int(str(oid)))] = EnumLabel(type_oid, str(type_name), str(label))
        place = (Oid(int(str(relid))), int(str(number)))
        columns.setdefault(type_oid, set()).add(place)
    return EnumColumns(
        labels, {type_oid: frozenset(places) for type_oid, places in columns.items()}
    )
