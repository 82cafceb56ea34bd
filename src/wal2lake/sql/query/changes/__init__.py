"""The translations of INSERT, UPDATE and DELETE, by clause.

Takes: a statement's tree with its parameters, and definitions of tables. Gives: Spark SQL, and the
plain forms that need no Spark. Owns: what each clause means for the stored rows. Never: reads a
table.

    stored     what the translations share: defaults, NOT NULL, ``SparkWrite``
    inserts    INSERT
    updates    UPDATE and DELETE
    returning  RETURNING
    onconflict ON CONFLICT
"""
