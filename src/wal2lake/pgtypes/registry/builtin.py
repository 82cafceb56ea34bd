"""PostgreSQL's built-in types as data: the rows of pg_type that have no array category.

Comes in: nothing. Goes out: tuples that ``pg_type`` converts to ``PgType`` values, and from
which it derives the array types (their other facts follow from the element's).
Row types of system catalogs are omitted, because no user table has such a column.

The facts are those of PostgreSQL 18; OIDs below 10000 never change between versions. A
test compares every fact with a server. Source: src/include/catalog/pg_type.dat,
pg_range.dat.
"""

from __future__ import annotations

ROWS: tuple[tuple[int, str, int, int, int, str, str, str, str, str], ...] = (
    # oid, name, array, element, length, category, kind, align, storage, i/o functions
    (16, "bool", 1000, 0, 1, "B", "b", "c", "p", "bool"),
    (17, "bytea", 1001, 0, -1, "U", "b", "i", "x", "bytea"),
    (18, "char", 1002, 0, 1, "Z", "b", "c", "p", "char"),
    (19, "name", 1003, 18, 64, "S", "b", "c", "p", "name"),
    (20, "int8", 1016, 0, 8, "N", "b", "d", "p", "int8"),
    (21, "int2", 1005, 0, 2, "N", "b", "s", "p", "int2"),
    (22, "int2vector", 1006, 21, -1, "A", "b", "i", "p", "int2vector"),
    (23, "int4", 1007, 0, 4, "N", "b", "i", "p", "int4"),
    (24, "regproc", 1008, 0, 4, "N", "b", "i", "p", "regproc"),
    (25, "text", 1009, 0, -1, "S", "b", "i", "x", "text"),
    (26, "oid", 1028, 0, 4, "N", "b", "i", "p", "oid"),
    (27, "tid", 1010, 0, 6, "U", "b", "s", "p", "tid"),
    (28, "xid", 1011, 0, 4, "U", "b", "i", "p", "xid"),
    (29, "cid", 1012, 0, 4, "U", "b", "i", "p", "cid"),
    (30, "oidvector", 1013, 26, -1, "A", "b", "i", "p", "oidvector"),
    (114, "json", 199, 0, -1, "U", "b", "i", "x", "json_"),
    (142, "xml", 143, 0, -1, "U", "b", "i", "x", "xml_"),
    (194, "pg_node_tree", 0, 0, -1, "Z", "b", "i", "x", "pg_node_tree_"),
    (600, "point", 1017, 701, 16, "G", "b", "d", "p", "point_"),
    (601, "lseg", 1018, 600, 32, "G", "b", "d", "p", "lseg_"),
    (602, "path", 1019, 0, -1, "G", "b", "d", "x", "path_"),
    (603, "box", 1020, 600, 32, "G", "b", "d", "p", "box_"),
    (604, "polygon", 1027, 0, -1, "G", "b", "d", "x", "poly_"),
    (628, "line", 629, 701, 24, "G", "b", "d", "p", "line_"),
    (650, "cidr", 651, 0, -1, "I", "b", "i", "m", "cidr_"),
    (700, "float4", 1021, 0, 4, "N", "b", "i", "p", "float4"),
    (701, "float8", 1022, 0, 8, "N", "b", "d", "p", "float8"),
    (705, "unknown", 0, 0, -2, "X", "p", "c", "p", "unknown"),
    (718, "circle", 719, 0, 24, "G", "b", "d", "p", "circle_"),
    (774, "macaddr8", 775, 0, 8, "U", "b", "i", "p", "macaddr8_"),
    (790, "money", 791, 0, 8, "N", "b", "d", "p", "cash_"),
    (829, "macaddr", 1040, 0, 6, "U", "b", "i", "p", "macaddr_"),
    (869, "inet", 1041, 0, -1, "I", "b", "i", "m", "inet_"),
    (1033, "aclitem", 1034, 0, 16, "U", "b", "d", "p", "aclitem"),
    (1042, "bpchar", 1014, 0, -1, "S", "b", "i", "x", "bpchar"),
    (1043, "varchar", 1015, 0, -1, "S", "b", "i", "x", "varchar"),
    (1082, "date", 1182, 0, 4, "D", "b", "i", "p", "date_"),
    (1083, "time", 1183, 0, 8, "D", "b", "d", "p", "time_"),
    (1114, "timestamp", 1115, 0, 8, "D", "b", "d", "p", "timestamp_"),
    (1184, "timestamptz", 1185, 0, 8, "D", "b", "d", "p", "timestamptz_"),
    (1186, "interval", 1187, 0, 16, "T", "b", "d", "p", "interval_"),
    (1266, "timetz", 1270, 0, 12, "D", "b", "d", "p", "timetz_"),
    (1560, "bit", 1561, 0, -1, "V", "b", "i", "x", "bit_"),
    (1562, "varbit", 1563, 0, -1, "V", "b", "i", "x", "varbit_"),
    (1700, "numeric", 1231, 0, -1, "N", "b", "i", "m", "numeric_"),
    (1790, "refcursor", 2201, 0, -1, "U", "b", "i", "x", "text"),
    (2202, "regprocedure", 2207, 0, 4, "N", "b", "i", "p", "regprocedure"),
    (2203, "regoper", 2208, 0, 4, "N", "b", "i", "p", "regoper"),
    (2204, "regoperator", 2209, 0, 4, "N", "b", "i", "p", "regoperator"),
    (2205, "regclass", 2210, 0, 4, "N", "b", "i", "p", "regclass"),
    (2206, "regtype", 2211, 0, 4, "N", "b", "i", "p", "regtype"),
    (2249, "record", 2287, 0, -1, "P", "p", "d", "x", "record_"),
    (2275, "cstring", 1263, 0, -2, "P", "p", "c", "p", "cstring_"),
    (2278, "void", 0, 0, 4, "P", "p", "i", "p", "void_"),
    (2279, "trigger", 0, 0, 4, "P", "p", "i", "p", "trigger_"),
    (2950, "uuid", 2951, 0, 16, "U", "b", "c", "p", "uuid_"),
    (2970, "txid_snapshot", 2949, 0, -1, "U", "b", "d", "x", "txid_snapshot_"),
    (3220, "pg_lsn", 3221, 0, 8, "U", "b", "d", "p", "pg_lsn_"),
    (3361, "pg_ndistinct", 0, 0, -1, "Z", "b", "i", "x", "pg_ndistinct_"),
    (3402, "pg_dependencies", 0, 0, -1, "Z", "b", "i", "x", "pg_dependencies_"),
    (3614, "tsvector", 3643, 0, -1, "U", "b", "i", "x", "tsvector"),
    (3615, "tsquery", 3645, 0, -1, "U", "b", "i", "p", "tsquery"),
    (3642, "gtsvector", 3644, 0, -1, "U", "b", "i", "p", "gtsvector"),
    (3734, "regconfig", 3735, 0, 4, "N", "b", "i", "p", "regconfig"),
    (3769, "regdictionary", 3770, 0, 4, "N", "b", "i", "p", "regdictionary"),
    (3802, "jsonb", 3807, 0, -1, "U", "b", "i", "x", "jsonb_"),
    (3904, "int4range", 3905, 0, -1, "R", "r", "i", "x", "range_"),
    (3906, "numrange", 3907, 0, -1, "R", "r", "i", "x", "range_"),
    (3908, "tsrange", 3909, 0, -1, "R", "r", "d", "x", "range_"),
    (3910, "tstzrange", 3911, 0, -1, "R", "r", "d", "x", "range_"),
    (3912, "daterange", 3913, 0, -1, "R", "r", "i", "x", "range_"),
    (3926, "int8range", 3927, 0, -1, "R", "r", "d", "x", "range_"),
    (4072, "jsonpath", 4073, 0, -1, "U", "b", "i", "x", "jsonpath_"),
    (4089, "regnamespace", 4090, 0, 4, "N", "b", "i", "p", "regnamespace"),
    (4096, "regrole", 4097, 0, 4, "N", "b", "i", "p", "regrole"),
    (4191, "regcollation", 4192, 0, 4, "N", "b", "i", "p", "regcollation"),
    (4451, "int4multirange", 6150, 0, -1, "R", "m", "i", "x", "multirange_"),
    (4532, "nummultirange", 6151, 0, -1, "R", "m", "i", "x", "multirange_"),
    (4533, "tsmultirange", 6152, 0, -1, "R", "m", "d", "x", "multirange_"),
    (4534, "tstzmultirange", 6153, 0, -1, "R", "m", "d", "x", "multirange_"),
    (4535, "datemultirange", 6155, 0, -1, "R", "m", "i", "x", "multirange_"),
    (4536, "int8multirange", 6157, 0, -1, "R", "m", "d", "x", "multirange_"),
    (
        4600,
        "pg_brin_bloom_summary",
        0,
        0,
        -1,
        "Z",
        "b",
        "i",
        "x",
        "brin_bloom_summary_",
    ),
    (
        4601,
        "pg_brin_minmax_multi_summary",
        0,
        0,
        -1,
        "Z",
        "b",
        "i",
        "x",
        "brin_minmax_multi_summary_",
    ),
    (5017, "pg_mcv_list", 0, 0, -1, "Z", "b", "i", "x", "pg_mcv_list_"),
    (5038, "pg_snapshot", 5039, 0, -1, "U", "b", "d", "x", "pg_snapshot_"),
    (5069, "xid8", 271, 0, 8, "U", "b", "d", "p", "xid8"),
)
"""The last field is the common prefix of the names of the input, output, receive and send
functions."""

RANGES: dict[int, tuple[int, int]] = {
    # range: (subtype, multirange)
    3904: (23, 4451),
    3906: (1700, 4532),
    3908: (1114, 4533),
    3910: (1184, 4534),
    3912: (1082, 4535),
    3926: (20, 4536),
}

PREFERRED = frozenset(
    ("bool", "text", "oid", "float8", "inet", "timestamptz", "interval", "varbit")
)
"""Types with pg_type.typispreferred, the preferred types of their categories."""

NO_BINARY = frozenset(("aclitem", "gtsvector"))
"""Types without receive and send functions."""

BY_REFERENCE = frozenset(("macaddr8",))
"""Types that are passed by reference although they have the length of a machine word."""

SQL_NAMES: dict[str, str] = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bpchar": "character",
    "varchar": "character varying",
    "varbit": "bit varying",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "char": '"char"',
}
"""Names that format_type prints if they differ from pg_type.typname."""
