"""Follows the publisher's ALTER TABLE: schema_changes = follow.

diff         compares two descriptions of a published table. Pure
additions    consecutive ADD COLUMNs that are carried out at once. Pure
making       whether steps that were begun before a crash have been made. Pure
columns      maps a published column to a local column
schemasteps  translates steps into changes of the local table
samekeys     whether a key tells here apart what it tells apart there. Pure
marks        the column that marks deleted rows. Pure
follow       finds the schema changes that a batch needs, and carries them out
"""
