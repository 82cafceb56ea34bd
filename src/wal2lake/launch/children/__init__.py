"""The other processes of a node: how the supervisor runs them, and how they begin.

Takes: the desired workers, the lifeline, the listening sockets. Gives: processes, and how they
ended. Owns: their environment, their sessions, the tie of their life to the supervisor's. Never:
decides what should run.

    group      the running children: start, stop, kill, reap
    child      the first steps of each child, and its requests
    spare      a process that waits to become a receiver
    nodelog    the supervisor's own lines, and the log's collector
    collector, logfile, echo   the process that writes the log file, that file, its copy on stderr
    guardian   kills the remaining processes if the supervisor is killed
    attendants keeps guardian and collector alive
"""
