"""Turns the commits of tables into transactions in the publisher's log.

ordering   commits of tables to transactions, in one order (pure)
positions  where a transaction and its changes are (pure)
writer     transactions to segments
handing    what subscriptions have that is prepared, handed on
worker     the thread that does it; start here
"""
