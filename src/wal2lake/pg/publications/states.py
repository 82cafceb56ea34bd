"""How tables are published at the moment, for a subscriber that watches its publications.

In: a session, names of publications. Out: a fingerprint, and ``PublishedState`` values.

The fingerprint is one row of one query that reads the publisher's catalogs without a lock. It
differs after each change that may concern the states, and after some that do not, so the states,
which take a few queries, are only read after it has changed.

A table that left a publication and came back, or whose row filter was another one for a moment, has
missed changes, although it is published as before. The OIDs of the catalog's entries show that: an
ALTER PUBLICATION that changes a table's entry makes another entry.

A partition under a root that is published as one brings rows without changes if it is attached with
rows in it. A partition that was created as one was empty: its rows in pg_attribute and pg_inherits
are of one transaction, and pg_class was given the bound before the row in pg_inherits was made. For
ATTACH PARTITION in the transaction that made the table it is the other way about.

Source: AlterPublicationTables() in publicationcmds.c; DefineRelation() and
ATExecAttachPartition() in tablecmds.c (StorePartitionBound, StoreCatalogInheritance).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.model import Oid
from wal2lake.pg.connection import Session
from wal2lake.pg.publishedtables import ancestors, numbers, published_parts
from wal2lake.pg.publisher import Publisher
from wal2lake.pg.quoting import quote_literal, quote_literals

_OPERATIONS: Final = "iudt"
"""insert, update, delete, truncate."""


@dataclass(frozen=True, slots=True)
class PublishedState:
    """How one table is published, as far as its copy depends on it."""

    oid: Oid
    namespace: str
    name: str
    through: frozenset[str]
    """Entries of the publisher's catalog that publish the table."""
    operations: str
    """Published operations: letters of i, u, d, t."""
    rows: str
    """Published columns, by number, and row filters."""
    generated: str = ""
    """Values of publish_generated_columns."""
    leaves: frozenset[int] = frozenset()
    """Partitions below a root that is published as one table."""
    attached: frozenset[int] = frozenset()
    """Partitions of ``leaves`` that may have had rows before."""
    publications: frozenset[str] = frozenset()
    """The publications that were asked for, whether they publish the table or not."""

    def as_json(self) -> str:
        """Return the text that ``parse`` reads."""
        fields = {
            "oid": int(self.oid),
            "through": sorted(self.through),
            "operations": self.operations,
            "rows": self.rows,
            "generated": self.generated,
            "leaves": sorted(self.leaves),
            "attached": sorted(self.attached),
            "publications": sorted(self.publications),
        }
        return json.dumps({name: value for name, value in fields.items() if value})

    @classmethod
    def parse(cls, text: str) -> PublishedState:
        """Read a state; its table's name is not part of the text."""
        fields = json.loads(text)
        return cls(
            Oid(fields["oid"]),
            "",
            "",
            frozenset(fields.get("through", ())),
            fields.get("operations", ""),
            fields.get("rows", ""),
            fields.get("generated", ""),
            frozenset(fields.get("leaves", ())),
            frozenset(fields.get("attached", ())),
            frozenset(fields.get("publications", ())),
        )


def publication_fingerprint(session: Session, names: tuple[str, ...]) -> str:
    """Return a text that differs once the states of the publications' tables may differ.

    Takes no lock, so it waits for no other session."""
    schemas = (
        " UNION SELECT c.oid FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_publication_namespace pn ON pn.pnnspid = c.relnamespace"
        " JOIN pubs ON pubs.oid = pn.pnpubid WHERE c.relkind IN ('r', 'p')"
        if session.server_version >= 150000
        else ""
    )
    schema_entries = (
        " UNION ALL SELECT 'n' || pn.oid FROM pg_catalog.pg_publication_namespace pn"
        " JOIN pubs ON pubs.oid = pn.pnpubid"
        if session.server_version >= 150000
        else ""
    )
    rows = session.query(
        "WITH RECURSIVE pubs AS (SELECT p.oid, p.puballtables,"
        f" {_flags(session)} AS flags FROM pg_catalog.pg_publication p"
        f" WHERE p.pubname IN ({quote_literals(names)})),"
        " part(relid) AS ("
        "(SELECT pr.prrelid FROM pg_catalog.pg_publication_rel pr"
        f" JOIN pubs ON pubs.oid = pr.prpubid{schemas}"
        " UNION SELECT c.oid FROM pg_catalog.pg_class c"
        " WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'"
        " AND c.oid >= 16384::pg_catalog.oid"
        " AND EXISTS (SELECT FROM pubs WHERE pubs.puballtables))"
        " UNION SELECT i.inhrelid FROM part"
        " JOIN pg_catalog.pg_inherits i ON i.inhparent = part.relid"
        " JOIN pg_catalog.pg_class p ON p.oid = i.inhparent AND p.relkind = 'p'),"
        " facts(fact) AS (SELECT 'p' || pubs.oid || pubs.flags FROM pubs"
        " UNION ALL SELECT 'r' || pr.oid FROM pg_catalog.pg_publication_rel pr"
        f" JOIN pubs ON pubs.oid = pr.prpubid{schema_entries}"
        " UNION ALL SELECT c.oid || ' ' || n.nspname || '.' || c.relname || c.relkind::text"
        " || c.relpersistence::text || COALESCE((SELECT pg_catalog.min(i.inhparent::text)"
        " FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid), '')"
        " FROM part JOIN pg_catalog.pg_class c ON c.oid = part.relid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)"
        " SELECT pg_catalog.md5(pg_catalog.string_agg(fact, ',' ORDER BY fact)) FROM facts"
    )
    return str(rows[0][0])


def published_states(
    session: Session, publications: tuple[str, ...]
) -> list[PublishedState]:
    """Return the state of each table of the publications.

    May wait for the lock of a table that is being altered, up to the session's lock_timeout.
    Raises PublisherError (0A000), as PostgreSQL does, if two publications have different column
    lists for one table."""
    names = Publisher(session).published_tables(publications)
    tables = _tables(session, names)
    relids = tuple(tables)
    if not relids:
        return []
    parts = published_parts(session, relids, publications)
    entries = _entries(session, relids, publications)
    roots = [relid for relid, (_, _, kind) in tables.items() if kind == "p"]
    leaves = _leaves(session, roots) if roots else {}
    states = []
    for relid, (namespace, name, _) in tables.items():
        through, operations, generated = entries.get(relid, (set(), set(), set()))
        below = leaves.get(relid, {})
        columns = parts[relid].columns
        states.append(
            PublishedState(
                relid,
                namespace,
                name,
                frozenset(through),
                "".join(o for o in _OPERATIONS if o in operations),
                json.dumps([columns and sorted(columns), sorted(parts[relid].filters)]),
                "".join(sorted(generated)),
                frozenset(below),
                frozenset(leaf for leaf, attached in below.items() if attached),
                frozenset(publications),
            )
        )
    return states


def relations_that_exist(session: Session, relids: Collection[int]) -> set[int]:
    """Return the relations of ``relids`` that have not been dropped."""
    if not relids:
        return set()
    listed = ", ".join(map(str, sorted(relids)))
    rows = session.query(
        f"SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid IN ({listed})"
    )
    return {int(str(row[0])) for row in rows}


def _tables(
    session: Session, names: Sequence[tuple[str, str]]
) -> dict[Oid, tuple[str, str, str]]:
    """Return schema, name and kind of existing tables by OID."""
    if not names:
        return {}
    pairs = ", ".join(f"({quote_literal(s)}, {quote_literal(t)})" for s, t in names)
    rows = session.query(
        "SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE (n.nspname, c.relname) IN ({pairs}) ORDER BY c.oid"
    )
    return {Oid(int(str(r[0]))): (str(r[1]), str(r[2]), str(r[3])) for r in rows}


def _flags(session: Session) -> str:
    """Return an expression for the options of publication ``p``: five characters."""
    generated = "p.pubgencols::text" if session.server_version >= 180000 else "'n'"
    letters = (
        f"CASE WHEN p.pub{word} THEN '{word[0]}' ELSE '-' END"
        for word in ("insert", "update", "delete", "truncate")
    )
    root = (
        "CASE WHEN p.pubviaroot THEN 'r' ELSE '-' END"
        if session.server_version >= 130000
        else "'-'"
    )
    return " || ".join((*letters, generated, root))


def _entries(
    session: Session, relids: Sequence[Oid], publications: tuple[str, ...]
) -> dict[Oid, tuple[set[str], set[str], set[str]]]:
    """Return by table the entries that publish it, the operations, and the options about
    generated columns."""
    schemas = (
        " UNION ALL SELECT up.leaf, 'n' || pn.oid, pubs.flags"
        " FROM up JOIN pg_catalog.pg_class c ON c.oid = up.relid"
        " JOIN pg_catalog.pg_publication_namespace pn ON pn.pnnspid = c.relnamespace"
        " JOIN pubs ON pubs.oid = pn.pnpubid"
        if session.server_version >= 150000
        else ""
    )
    rows = session.query(
        f"WITH RECURSIVE {ancestors(relids)},"
        f" pubs AS (SELECT p.oid, p.puballtables, {_flags(session)} AS flags"
        " FROM pg_catalog.pg_publication p"
        f" WHERE p.pubname IN ({quote_literals(publications)}))"
        " SELECT c.oid, 'p' || pubs.oid, pubs.flags FROM pg_catalog.pg_class c, pubs"
        f" WHERE pubs.puballtables AND c.oid IN ({numbers(relids)})"
        " UNION ALL SELECT up.leaf, 'r' || pr.oid, pubs.flags"
        " FROM up JOIN pg_catalog.pg_publication_rel pr ON pr.prrelid = up.relid"
        f" JOIN pubs ON pubs.oid = pr.prpubid{schemas}"
    )
    by_table: dict[Oid, tuple[set[str], set[str], set[str]]] = {}
    for relid, entry, flags in rows:
        entries = by_table.setdefault(Oid(int(str(relid))), (set(), set(), set()))
        entries[0].add(str(entry))
        entries[1].update(str(flags)[:4])
        entries[2].add(str(flags)[4])
    return by_table


def _leaves(session: Session, roots: Sequence[Oid]) -> dict[Oid, dict[int, bool]]:
    """Return the partitions below each root that hold rows, and whether they, or a level above
    them, were attached. A publisher whose catalog has no such marks is said to attach none."""
    rows = session.query(
        "WITH RECURSIVE part(root, relid, attached) AS ("
        "SELECT c.oid, c.oid, false FROM pg_catalog.pg_class c"
        f" WHERE c.oid IN ({numbers(roots)})"
        " UNION ALL SELECT part.root, i.inhrelid, part.attached"
        " OR COALESCE(a.xmin <> i.xmin, false) OR COALESCE(c.xmin = i.xmin"
        " AND c.cmin::text::int8 >= i.cmin::text::int8, false) FROM part"
        " JOIN pg_catalog.pg_inherits i ON i.inhparent = part.relid"
        " JOIN pg_catalog.pg_class p ON p.oid = part.relid AND p.relkind = 'p'"
        " JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid"
        " LEFT JOIN pg_catalog.pg_attribute a"
        " ON a.attrelid = i.inhrelid AND a.attname = 'ctid')"
        " SELECT part.root, part.relid, part.attached FROM part"
        " JOIN pg_catalog.pg_class l ON l.oid = part.relid AND l.relkind <> 'p'"
    )
    leaves: dict[Oid, dict[int, bool]] = {}
    for root, leaf, attached in rows:
        below = leaves.setdefault(Oid(int(str(root))), {})
        below[int(str(leaf))] = attached == "t"
    return leaves
