"""Passes transactions of subscriptions on, as their publishers sent them.

Takes: a subscription's batch, what its publisher has prepared. Gives: the publisher's transactions,
for the log. Owns: nothing. Never: changes a row, or the order of transactions.

    cascade    a batch of a subscription as the transactions of its publisher
    handing    hands on transactions that a subscription's publisher has prepared
"""
