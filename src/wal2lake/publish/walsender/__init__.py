"""A process for each client that streams.

__main__   the process
template   what it is forked from
stream     the loop: log to plugin to socket, and what the client says
page       positions of one walsender, in mapped memory
starting   the engine's side: start it, wait for it, know who is there
"""
