"""State that concurrent sessions and workers share.

snapshots       the versions that a statement reads while others commit
heldtables      tables that prepared transactions hold
sequencevalues  sequence values that statements and sessions take
activeorigins   replication origins that sessions have set up
turns           commands that must not interleave
blocks          turns and steps of an open transaction block
rounds          background work that begins again and again
leaving         tables that background work leaves when they are dropped
vacuumturns     the turn of vacuuming
"""
