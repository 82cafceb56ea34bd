"""Rules by which facts become problems.

Takes: ``NodeFacts``, the time. Gives: ``Problem``s with their remedies. Never: does I/O.

    node           processes, disks, certificate, settings
    subscription   one subscription and its tables
    catalogs       the catalog of others in which tables are registered
    publisher      slots and transactions of the node's own
    remedies       the SQL for an error; names and constants in SQL
    words          durations and sizes in words
"""
