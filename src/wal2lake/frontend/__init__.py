"""The doors of a node: the command line, and PostgreSQL's protocol on a socket.

Takes: argument lists, connections, SQL. Gives: exit codes and print, protocol messages, rows;
catalog changes and calls to the publisher. Owns: the listener, the sessions, and the engine's
process, in which all rooms meet. Never: keeps a durable fact of its own, moves replicated rows,
reads a replication stream.

In the order in which a statement passes them; imports fall downward here, too:

    cli/, engine/   the program ``wal2lake``; the process with Spark, which puts all together
    door/           who comes in, who is there
    session/        one client's statements, over a ``backend.Backend``
    sysviews/       catalog queries, by an embedded SQL engine
    commands/       the node's own statements, carried out
    client/         one client's connection
    query/          queries to Spark SQL, its answers as PostgreSQL's
    backend         the port between a session and whatever executes its statements
    grammar/        the statements that the node understands itself; SQL's lexical rules
    parameters/     session parameters and character sets

Public names are imported from those packages; this one imports nothing, so that a command
loads only what it needs.
"""
