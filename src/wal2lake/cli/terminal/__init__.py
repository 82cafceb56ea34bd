"""Terminal output of subcommands: rows, errors, progress.

Takes: rows, errors, parts of work. Gives: lines on stdout and stderr. Owns: their form. Never:
asks a server, reads a node.

    print      rows as psql prints them
    words      lags, copies and problems in words
    progress   spinners, on terminals only
    copybars   bars of copies, on terminals only
    errors     errors as PostgreSQL's programs print them

This package imports nothing, so that a subcommand loads only what it needs.
"""
