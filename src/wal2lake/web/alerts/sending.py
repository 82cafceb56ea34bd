"""A thread for each channel that sends the alerts that are due.

In: the problems of each look. Out: JSON to the channels, the ledgers' files in the run directory.
No thread waits for a channel: a look leaves its problems and goes on. A sender whose ledger another
one has taken over writes and sends no more.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from wal2lake.health import NodeFacts, Problem
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.settings import Settings
from wal2lake.web.alerts.channels import (
    AlertChannel,
    Command,
    DeliveryError,
    Webhook,
)
from wal2lake.web.alerts.ledger import Alert, AlertLedger
from wal2lake.web.alerts.ledgerfile import LedgerFile

_LOOK_SECONDS: Final = 1.0
"""Interval in which a thread looks for alerts that have become due."""


class Sender:
    """Sends the alerts of one channel, in a thread of its own."""

    def __init__(
        self,
        channel: AlertChannel,
        run_directory: Path,
        delay_seconds: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take over the ledger's file; ``start`` starts the thread."""
        self._channel = channel
        self._file = LedgerFile(run_directory / f"alerts-{channel.name}.json")
        self._clock = clock
        self._ledger = AlertLedger(delay_seconds)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._node: dict[str, Any] = {}
        self._errors = RepeatedErrors()
        self._thread = threading.Thread(
            target=self._work, name=f"alerts-{channel.name}", daemon=True
        )
        self._restore()

    def _restore(self) -> None:
        with self._reporting():
            self._file.take()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            self._ledger.restore(self._file.entries)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def channel(self) -> AlertChannel:
        """The channel, to be compared with another."""
        return self._channel

    def set_delay(self, seconds: float) -> None:
        """Use another delay from now on."""
        with self._lock:
            self._ledger.delay = timedelta(seconds=seconds)

    def stop(self) -> None:
        """Have the thread end after what it does; do not wait for it."""
        self._stopped = True
        self._wake.set()

    def observe(self, facts: NodeFacts, problems: Iterable[Problem]) -> None:
        """Take one look's problems."""
        with self._lock:
            self._node = {
                "directory": facts.directory,
                "host": socket.gethostname(),
                "address": facts.address,
                "port": facts.port,
            }
            if self._ledger.observe(problems, self._clock()):
                self._save()
        self._wake.set()

    def _work(self) -> None:
        while not self._stopped:
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()
            while not self._stopped and self.send_next():
                pass

    def send_next(self) -> bool:
        """Send one alert; returns False if none is due, or if it was not accepted."""
        with self._lock:
            alert = self._ledger.due(self._clock())
            if alert is None or self._is_over():
                return False
            node = self._node
            # On record before it is sent: a kill repeats it with the same id.
            if self._ledger.attempt(alert):
                self._save()
            if self._stopped:
                return False
        try:
            self._channel.deliver(
                message(alert, node), {"id": alert.id, "event": alert.event}
            )
        except DeliveryError as error:
            self._errors.say(get_logger(), "could not send an alert", error)
            with self._lock:
                if self._ledger.failed(alert, self._clock(), doubtful=error.doubtful):
                    self._save()
            # The others would probably fail as well, each after its time-out.
            return False
        self._errors.passed(get_logger())
        with self._lock:
            self._ledger.sent(alert)
            self._save()
        return True

    def _is_over(self) -> bool:
        """Return whether another sender has the ledger; this one stops then."""
        if self._file.is_lost():
            self._stopped = True
        return self._stopped

    def _save(self) -> None:
        with self._reporting():
            if not self._file.write(self._ledger.to_json()):
                self._stopped = True

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The alert may say that the disk is full, so it is sent all the same.
            get_logger().error(
                f'could not write file "{self._file.path}": {error.strerror}'
            )


def message(alert: Alert, node: dict[str, Any]) -> str:
    """Return an alert as JSON (docs/guide/monitoring.md, Alerts)."""
    content = {
        "version": 1,
        "id": alert.id,
        "event": alert.event,
        "node": node,
        "problem": dict(alert.problem),
        "ended_at": alert.ended_at and alert.ended_at.isoformat(),
    }
    return json.dumps(content, ensure_ascii=False)


class Alerts:
    """The channels of the settings in force. For the thread that reads, and for ``reload``."""

    def __init__(self, settings: Settings) -> None:
        """Start a thread for each channel."""
        self._lock = threading.Lock()
        self._senders = [_started(c, settings) for c in _channels(settings)]

    def reload(self, settings: Settings) -> None:
        """Use new settings; a channel that stays goes on."""
        with self._lock:
            channels = list(_channels(settings))
            running = {sender.channel: sender for sender in self._senders}
            for channel in running.keys() - set(channels):
                running.pop(channel).stop()
            self._senders = [
                running.get(channel) or _started(channel, settings)
                for channel in channels
            ]
            for sender in self._senders:
                sender.set_delay(settings.alerts.delay_ms / 1000)

    def observe(self, facts: NodeFacts, problems: Iterable[Problem]) -> None:
        """Take one look's facts and problems."""
        with self._lock:
            for sender in self._senders:
                sender.observe(facts, problems)

    def stop(self) -> None:
        """End the threads, without waiting for an alert that is being sent."""
        for sender in self._senders:
            sender.stop()


def _channels(settings: Settings) -> Iterator[AlertChannel]:
    if settings.alerts.webhook_url:
        yield Webhook(settings.alerts.webhook_url)
    if settings.alerts.command:
        yield Command(settings.alerts.command)


def _started(channel: AlertChannel, settings: Settings) -> Sender:
    sender = Sender(channel, settings.run_directory, settings.alerts.delay_ms / 1000)
    sender.start()
    return sender
