"""The engine's process, where all rooms meet: ``python -m wal2lake.engine -D DIR``.

Takes: a node's settings, the supervisor's sockets. Gives: a node that replicates and answers.
Owns: the order in which the parts start and stop, and which part answers a statement. Never:
does a part's work.

    __main__        starts the parts, waits, stops them
    assembly        puts the parts together
    session/        executes the statements of one session, through ``lakebackend``
    rows/           reads the rows of a query
    running         the state of the parts at the moment, for viewsource
    viewsource      provides the node's state to system views
    measuring       gauges of the engine, looked at in intervals
    publishing      puts the publisher's half together
    followedtables  carries out a publisher's ALTER TABLE
    columndefaults  evaluates column defaults
    storetrial      tries a warehouse in an object store, as a program of its own

This package imports nothing; importing ``__main__`` loads Spark.
"""
