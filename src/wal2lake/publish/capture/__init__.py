"""Turns the commits of tables into transactions in the publisher's log.

Takes: commits of published tables, requests from sessions. Gives: segments of the log. Owns: the
order of transactions and their LSNs. Never: changes a table, or leaves out a commit that a slot
has to send.

    worker            the capture thread; start here
    requests          what sessions ask of it, with the results
    step              one look: everything visible to the log, and requests served
    ordering          groups commits of tables into transactions, in one order (pure)
    positions         positions of a transaction and its changes (pure)
    recorder          writes a transaction: cascaded, by statement, or as the difference
    cascading/        transactions of subscriptions, as their publishers sent them
    statementchanges  the changes of each statement, until the transaction is in the log
    relations         a table as the relation of its changes (pure)
    writer            writes transactions to segments
"""
