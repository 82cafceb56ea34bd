"""The publisher half sends commits of tables to subscribers.

    driver       passes transactions to a plugin's callbacks
    capture/     writes commits of tables to the publisher's log, as transactions
    decoding/    reads transactions of that log, in commit order, for a slot
    plugins/     the interface of output plugins, and the built-in plugins
    walsender/   a process for each streaming client
    published    tables and columns of a publication; requirements on replica identities
    filtering    row filters of an UPDATE
    sending      the rows and columns of each table that a client's publications send
    slots        replication slots: the part of the log that each client needs

Takes: the tables' own logs, publications. Gives: a stream of messages to each client. Owns: the log
below ``log/publish`` and the slots. Never: writes a table. docs/decisions/0014 has the reasons.
"""
