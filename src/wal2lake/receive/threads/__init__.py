"""What stands beside the reader of a walreceiver: threads, and what the reader shares with them.

Takes: gulps of the stream, questions. Gives: logged positions, segments, the server's own position.
Owns: the connection for questions, the order of what is written to the log. Never: reads or writes
the stream.
"""
