"""Pre-flight: what will misbehave between a publisher and this node, before anything is touched.

Takes: a session at the publisher, names of publications. Gives: findings, each with its remedy.
Owns: what is said about a publisher. Never: changes anything there, prints, raises what a command
refuses by itself.

    ask       facts of the server, its publications and their tables
    pooler    is somebody in between?
    server    judges a server and its publications; pure
    tables    judges published tables; pure
    values    asks for values that are not like others, and judges them
    stored    judges the tables that are here already; pure
    finding   what a judgement is, and how many alike become one; pure

Called by ``wal2lake check``, which prints all findings, and by CREATE SUBSCRIPTION and what adds
tables to one, which tell the client those that are no matter of course (``finding.notices``).
"""
