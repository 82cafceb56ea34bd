"""Statements about lake tables: CREATE, ALTER, DROP, writes, COPY.

table       CREATE and DROP of tables and schemas
altertable  ALTER TABLE; ``partitions``: refuses what partitions do not allow
rewriting   ALTER TABLE that writes rows anew
followed    refuses changes of tables whose columns the publisher determines
deletemarks  checks and guards tables whose deleted rows are marked
dml         INSERT, UPDATE, DELETE, TRUNCATE
copying     the options of COPY
past        reads of tables as of an LSN or a time
"""
