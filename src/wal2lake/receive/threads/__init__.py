"""Threads of a walreceiver beside its reader, and the state that they share with the reader.

Takes: gulps of the stream, positions to verify. Gives: logged positions, segments, the server's own
WAL position. Owns: the connection for queries, the order of writes to the log. Never: reads or
writes the stream.
"""
