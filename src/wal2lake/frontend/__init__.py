"""The doors of a node: the command line, and PostgreSQL's protocol on a socket.

Takes: argument lists, connections, SQL. Gives: exit codes and print, protocol messages, rows;
catalog changes and calls to the publisher. Owns: the listener, the sessions, and the engine's
process, in which all rooms meet. Never: keeps a durable fact of its own, moves replicated rows,
reads a replication stream.

    cli, cli_*            the program ``wal2lake``, a module for each subcommand
    engine                the process with Spark: puts the rooms together
    listener, connections who comes in, who is there
    session/              one client's conversation, over a ``backend.Backend``
    parameters/           session parameters and character sets
    lakebackend           each statement to the part that answers it
    grammar/, commands/   the node's own statements: parsed, carried out
    translate, results    queries to Spark SQL, its answers as PostgreSQL's
    sysviews/, viewsource catalog queries, by an embedded SQL engine

Public names are imported from those modules; this one imports nothing, so that a command
loads only what it needs.
"""
