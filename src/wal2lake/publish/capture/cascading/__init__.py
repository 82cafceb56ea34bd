"""Passes transactions of subscriptions on, as their publishers sent them.

cascade    a batch of a subscription as the transactions of its publisher
handing    hands on transactions that a subscription's publisher has prepared
"""
