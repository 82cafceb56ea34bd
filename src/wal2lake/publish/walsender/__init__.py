"""A process for each streaming client.

Takes: a client's socket, a slot, a plugin with its options. Gives: the stream; the position that
the client has confirmed, to the slot. Owns: the page of positions. Never: decides what is in the
log.

    starting   the engine's side: starts walsenders, waits for them, lists them
    template   the process that walsenders are forked from
    __main__   the process
    stream     the loop: log to plugin to socket, and the client's messages
    page       positions of one walsender, in mapped memory
    lag        how long a client takes to write, flush and apply
"""
