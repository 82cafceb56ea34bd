"""The other processes of a node, as the supervisor has them and as they begin.

Takes: what should run, the lifeline, the listening sockets. Gives: processes, and how they ended.
Owns: their environment, their sessions, the tie of their life to the supervisor's. Never: decides
what should run.

    group      all that run: started, stopped, killed, buried
    child      what each does first; what the engine asks of it
    spare      a process that waits to become a receiver
    guardian   kills what is left if the supervisor is killed
"""
