"""The start of a node, up to its supervisor.

Takes: a directory, what the command line says, the environment. Gives: the exit code of the node,
or the PID of one in the background. Owns: the order of the start. Never: starts a child.

    node       takes the lock, checks what an engine needs, runs the supervisor
    detached   wal2lake start --daemon
    java       checks the Java that Spark needs
"""
