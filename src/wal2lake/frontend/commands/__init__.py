"""What statements do: catalog changes, table storage, calls to the publisher.

Takes: parsed statements and the node. Gives: command tags and notices. Owns: the order of
durable steps in each command. Never: parses, speaks the protocol, moves rows itself.
"""
