"""Types that are not built in, as a publisher's catalog has them.

In: a session. Out: ``RemoteType`` values, for the decoders of their binary form. Called by
``publisher``.
"""

from __future__ import annotations

from wal2lake.model import Oid
from wal2lake.pg.connection import Session
from wal2lake.pgtypes import FIRST_NORMAL_OID, MONEY_SAMPLES, RemoteType, money_type


def describe_types(session: Session) -> tuple[RemoteType, ...]:
    """Every type that is not built in, for the decoders of its binary form; and money,
    with its format.

    Row types of tables are left out unless some column is of that type.
    """
    rows = session.query(
        "SELECT t.oid, n.nspname || '.' || t.typname,"
        # A domain has the output function of its base type.
        " CASE WHEN t.typtype <> 'd'"
        " AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc"
        " THEN 'a'"
        # Somebody's own type may be called citext.
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
