"""Access to object stores: credentials of a command.

Takes: a shell command. Gives: credentials, or the reason why there are none. Owns: the command's
run and its output. Never: prints a secret, or writes one to a file.

    command   credentials that a command prints
    tokens    what a command for Google or Azure prints
"""
