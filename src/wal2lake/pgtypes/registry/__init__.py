"""PostgreSQL's built-in types as facts.

Takes: OIDs, names, spellings in SQL. Gives: ``PgType``, format_type(), (OID, typmod) of a
spelling. Owns: the table of built-in types. Never: knows Arrow or Spark, or a type
that a user has made.

    pg_type      facts by OID and by name, format_type, typmods
    rows         the same as data
    type_names   the grammar of type names
    lengths      the lengths that declarations set
"""
