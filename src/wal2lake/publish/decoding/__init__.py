"""Transactions of the publisher's log, in commit order.

changes        what is read: transactions, their changes, messages
transactions   from segments: each transaction, and its changes in their order
groups         small transactions, many at once
"""
