"""Alerts: a message when a problem begins, and one when it ends.

Takes: the problems of each look. Gives: JSON to a webhook or a command. Never: sends an alert
twice, or lets anybody wait for the other side.

    ledger     which alerts are due
    channels   webhook, command
    sending    a thread for each channel
"""

from wal2lake.web.alerts.sending import Alerts

__all__ = ["Alerts"]
