"""Threads of a walreceiver beside its reader, and the state that they share with it.

Takes: gulps of the stream, questions. Gives: logged positions, segments, the server's own position.
Owns: the connection for questions, the order of what is written to the log. Never: reads or writes
the stream.
"""
