"""Turns the commits of tables into transactions in the publisher's log.

ordering   groups commits of tables into transactions, in one order (pure)
positions  positions of a transaction and its changes (pure)
writer     writes transactions to segments
recorder   writes a transaction: cascaded, by statement, or as the difference
step       one look: everything visible to the log, and requests served
cascading/ transactions of subscriptions, as their publishers sent them
worker     the capture thread and its requests; start here
"""
