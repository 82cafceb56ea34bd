"""The engine's process, where all rooms meet: ``python -m wal2lake.engine -D DIR``.

Takes: a node's settings, the supervisor's sockets. Gives: a node that replicates and answers.
Owns: the order in which the parts start and stop, and which part answers a statement. Never:
does a part's work.

    __main__      puts the parts together
    lakebackend   the ``Backend`` of a session: each statement to the part that answers it
    tablenames    which version of each table a statement reads
    copies        what COPY is beside its query
    rows/         where a query's rows come from
    viewsource    what the system views read

This package imports nothing: ``__main__`` is the one that loads Spark.
"""
