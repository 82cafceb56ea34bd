"""Facts about PostgreSQL's built-in types.

Takes: OIDs, names, spellings in SQL. Gives: ``PgType``, format_type(), (OID, typmod) of a
spelling. Owns: the table of built-in types. Never: depends on Arrow or Spark, has user-defined
types.

    pg_type      facts by OID and by name, format_type, typmods
    builtin      the facts as data
    type_names   the grammar of type names
    lengths      declared lengths
"""
