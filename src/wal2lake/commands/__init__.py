"""Carries out statements: catalog changes, table storage, calls to the publisher.

Takes: parsed statements and the node. Gives: command tags and notices. Owns: the order of
durable steps in each command. Never: parses, speaks the protocol, moves rows itself.

    calls/         functions that change something: one table's pause, an origin's position
    subscription/  CREATE, ALTER and DROP SUBSCRIPTION
    tables/        CREATE, ALTER and DROP of tables, DML, COPY
    constraints/   keys, CHECK, generated and identity columns
    maintenance/   VACUUM
    publication/   CREATE, ALTER and DROP PUBLICATION, and their demands on tables
    roles/         CREATE, ALTER and DROP ROLE, GRANT, REVOKE, OWNER TO
    preflight/     judges a publisher before anything is touched

Each folder imports only those below it. ``local`` commits the writes.
"""
