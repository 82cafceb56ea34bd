"""A process for each streaming client.

__main__   the process
template   the process that walsenders are forked from
stream     the loop: log to plugin to socket, and the client's messages
page       positions of one walsender, in mapped memory
starting   the engine's side: starts walsenders, waits for them, lists them
"""
