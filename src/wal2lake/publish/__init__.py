"""The publisher half: from commits of tables to subscribers.

    driver       transactions to a plugin's callbacks
    capture/     what tables have committed becomes transactions in the publisher's log
    decoding/    transactions of that log, in commit order, for a slot
    plugins/     what an output plugin is, and those that are built in
    walsender/   a process for each client that streams
    publications which tables and columns a publication has; what it asks of a replica identity
    filtering    what row filters make of an UPDATE
    sending      what publications together send of each table
    slots        who needs which part of the log

Takes: the tables' own logs, publications. Gives: a stream of messages to each client. Owns: the log
below ``log/publish`` and the slots. Never: writes a table. docs/decisions/0014 says why it is so.
"""
