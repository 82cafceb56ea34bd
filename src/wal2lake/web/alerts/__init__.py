"""Alerts: a message when a problem begins, and one when it ends.

Takes: the problems of each look. Gives: JSON to a webhook or a command. Owns: the ledgers' files
in the run directory. Never: sends an alert again whose delivery is noted, repeats one with another
id, or lets anybody wait for the other side.

    ledger       which alerts are due
    ledgerfile   the file of a ledger, and the lock of its sender
    channels     webhook, command
    connecting   connections that end in time
    sending      a thread for each channel
"""

from wal2lake.web.alerts.sending import Alerts

__all__ = ["Alerts"]
