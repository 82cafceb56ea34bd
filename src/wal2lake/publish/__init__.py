"""The publisher half sends commits of tables to subscribers.

Takes: the tables' own logs, publications. Gives: a stream of messages to each client. Owns: the log
below ``log/publish`` and the slots. Never: writes a table. docs/decisions/0014 has the reasons.

    capture/     writes commits of tables to the publisher's log, as transactions
    decoding/    reads transactions of that log, in commit order, for a slot
    driver       passes transactions to a plugin's callbacks
    plugins/     the interface of output plugins, and the built-in plugins
    walsender/   a process for each streaming client
    reading      a slot's changes as rows, for the SQL functions
    published    tables and columns of a publication; requirements on replica identities
    filtering    row filters of an UPDATE, and several publications' filters of one table
    sending      the rows and columns of each table that a client's publications send
    slots        replication slots: the part of the log that each client needs
    limits       what slots may hold, and for how long they may be idle
    statistics   what slots have decoded, for pg_stat_replication_slots
    synchronous  the subscribers that a COMMIT waits for
    service      the engine's publisher half, as commands and functions use it
"""
