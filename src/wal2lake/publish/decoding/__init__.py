"""Reads transactions of the publisher's log, in commit order.

Takes: segments, a slot's position. Gives: transactions with their changes. Owns: nothing. Never:
decides what a client gets of them.

    decoded        values: transactions, their changes, messages
    transactions   reads segments: each transaction, and its changes in order
    groups         many small transactions at once
"""
