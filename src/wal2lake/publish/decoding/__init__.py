"""Transactions of the publisher's log, in commit order.

transactions   from segments: each transaction, and its changes in their order
"""
