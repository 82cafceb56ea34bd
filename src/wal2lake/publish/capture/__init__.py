"""What tables have committed, as transactions in the publisher's log.

ordering   commits of tables to transactions, in one order (pure)
positions  where a transaction and its changes are (pure)
writer     transactions to segments
worker     the thread that does it; start here
"""
