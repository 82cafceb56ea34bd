"""Reads transactions of the publisher's log, in commit order.

decoded        values: transactions, their changes, messages
transactions   reads segments: each transaction, and its changes in order
groups         many small transactions at once
"""
