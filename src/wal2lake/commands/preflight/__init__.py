"""Pre-flight: finds problems between a publisher and this node before anything is changed.

Takes: a session at the publisher, names of publications. Gives: findings, each with its remedy.
Owns: all judgements about a publisher. Never: changes anything there, prints, or raises errors that
the commands raise themselves.

    ask            reads facts about the server, its publications and their tables
    pooler         detects a connection pooler
    server         judges a server and its publications; pure
    tablefindings  judges published tables; pure
    values         asks for values with special treatment here, and judges them
    stored         judges tables that exist here already; pure
    finding        the findings, and the merging of similar ones; pure

Called by ``wal2lake check``, which prints all findings, and by CREATE SUBSCRIPTION and other
commands that add tables, which send the client the notes and problems (``finding.notices``).
"""
