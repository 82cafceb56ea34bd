"""What stands in for real things in tests that need nothing else.

    door             a front door over a Backend that only pretends, and a client of raw bytes
    catalog_source   a node's catalog with the objects of the recorded catalog queries
    publisher        transactions as the messages of a walsender, and read back from a log
    streams          strategies: any message, any stream by the rules, damaged ones
    random_expressions  SQL expressions that servers refuse in many ways
    node             a node's directory with a real supervisor (node_runner) and fake children
                     (node_child)

What is useful outside of these tests is in ``wal2lake.testing``.
"""
