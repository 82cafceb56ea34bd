"""One batch into all tables of a subscription.

Takes the batch that the worker has chosen, and the participating tables. Gives commits of the
tables, published at one position. Owns the order of evaluation, followed alterations, commits and
publication. Never chooses a batch, and never waits for the publisher.
"""
