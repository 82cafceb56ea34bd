"""Turns the commits of tables into transactions in the publisher's log.

ordering   groups commits of tables into transactions, in one order (pure)
positions  positions of a transaction and its changes (pure)
writer     writes transactions to segments
handing    hands on transactions that a subscription's publisher has prepared
worker     the capture thread; start here
"""
