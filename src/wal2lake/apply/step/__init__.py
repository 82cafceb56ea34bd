"""One batch into all tables of a subscription.

Takes the batch that the worker has chosen, and the tables that take part. Gives commits of the
tables, published at one position. Owns the order of evaluation, followed alterations, commits and
publication. Never chooses what a batch is made of, and never waits for the publisher.
"""
