"""ALTER TABLE at the publisher, made here, too: schema_changes = follow.

diff      what has changed between two descriptions of a published table. Pure
columns   our column for a published one
changes   steps as changes of our table
follow    which changes a batch needs, and making them
"""
