"""The files that the runs of a batch meet.

Module: ``livefiles`` (the table's files as the runs so far have left them).
"""
