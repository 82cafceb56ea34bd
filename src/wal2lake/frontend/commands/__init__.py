"""What statements do: catalog changes, table storage, calls to the publisher.

Takes: parsed statements and the node. Gives: command tags and notices. Owns: the order of
durable steps in each command. Never: parses, speaks the protocol, moves rows itself.

    subscription/   CREATE, ALTER and DROP SUBSCRIPTION
    publication/    CREATE, ALTER and DROP PUBLICATION, and what they ask of tables
    calls/          functions that change something: one table's pause, an origin's position
    roles/          CREATE, ALTER and DROP ROLE, GRANT, REVOKE, OWNER TO
    table           CREATE and DROP of tables and schemas
    altertable      ALTER TABLE; partitions: what it may not do to those
    dml             INSERT, UPDATE, DELETE, TRUNCATE
    transaction/    where they write, and how it is committed
    snapshots       which version of each table a statement reads
    access          whether the caller may
    node            what all of them can reach: the parts of the running engine
    turns           one command at a time for each subscription
"""
