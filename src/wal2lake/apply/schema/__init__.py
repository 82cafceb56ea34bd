"""Follows the publisher's ALTER TABLE: schema_changes = follow.

diff         what has changed between two descriptions of a published table. Pure
columns      our column for a published one
schemasteps  steps as changes of our table
follow       which changes a batch needs, and making them
"""
