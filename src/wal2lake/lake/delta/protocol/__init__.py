"""Knows what a table's protocol demands of a writer.

Takes: ``protocol`` and ``metaData`` actions. Gives: refusals of tables that the node cannot write,
the numbers of rows in tables that track them, the protocol of a table that needs one more
feature, the definition of a new table. Owns: the closed list of features. Never: reads or writes
a file.

Modules: ``features``, ``rowids``, ``upgrade``, ``newtables``.
"""
