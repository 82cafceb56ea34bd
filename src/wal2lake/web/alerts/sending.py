"""A thread for each channel that sends the alerts that are due.

    readings ──▶ Alerts.observe ──▶ Sender: the last look      (memory; waits for nothing)
                                       │
                            its thread ├──▶ the ledger's file
                                       └──▶ the channel

In: the problems of each look. Out: JSON to the channels, the ledgers' files in the run directory.
Only the thread touches files and channels, so neither a disk nor a receiver that hangs holds up a
look. It works while it holds the ledger's lock, and asks for it again and again while another
sender does.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from wal2lake.errors import StorageError, reason_of
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
"""Interval in which a thread looks for alerts that have become due, and for a lock that another
sender has or a file that could not be read or written."""

_LONGEST_REST: Final = 30.0
"""Longest pause after failures of a channel, whatever alerts are due. A thousand alerts that are
refused would otherwise be a request and two writes of the ledger every second."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the node."""

    node: dict[str, Any]
    problems: tuple[Problem, ...]
    moment: datetime


class Sender:
    """Sends the alerts of one channel, in a thread of its own."""

    def __init__(
        self,
        channel: AlertChannel,
        run_directory: Path,
        delay_seconds: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Touch nothing yet; ``start`` starts the thread."""
        self._channel = channel
        self._file = LedgerFile(run_directory / f"alerts-{channel.name}.json")
        self._clock = clock
        self._ledger = AlertLedger(delay_seconds)
        # Never held while a file or the channel is used.
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._look: _Look | None = None
        # Whether the ledger is that of the file.
        self._owns = False
        self._unsaved = False
        self._warned = False
        self._failures = 0
        self._rests_until = 0.0
        self._errors = RepeatedErrors()
        self._file_errors = RepeatedErrors()
        self._bugs = RepeatedErrors()
        self._thread = threading.Thread(
            target=self._work, name=f"alerts-{channel.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread, unless that is done."""
        if self._thread.ident is None:
            self._thread.start()

    @property
    def channel(self) -> AlertChannel:
        """The channel, to be compared with another."""
        return self._channel

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended, or is going to end."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        return self._stopped or ended

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
        node = {
            "directory": facts.directory,
            "host": socket.gethostname(),
            "address": facts.address,
            "port": facts.port,
        }
        look = _Look(node, tuple(problems), self._clock())
        with self._lock:
            self._look = look
            if self._owns and self._ledger.observe(look.problems, look.moment):
                self._unsaved = True
        self._wake.set()

    def _work(self) -> None:
        try:
            while not self._stopped:
                self._wake.wait(_LOOK_SECONDS)
                self._wake.clear()
                if time.monotonic() < self._rests_until:
                    continue
                try:
                    while not self._stopped and self.send_next():
                        pass
                except Exception as error:
                    # A bug must not end the thread, which all later alerts depend on.
                    self._bugs.say(get_logger(), "internal error", error)
        finally:
            self.release()

    def release(self) -> None:
        """Write what is not yet in the file, and leave it to the next sender. For the thread."""
        try:
            self._save()
        finally:
            with self._lock:
                self._owns = False
            self._file.release()

    def send_next(self) -> bool:
        """Send one alert; returns False if none is due, or if it was not accepted. For the
        thread."""
        if not self._take():
            return False
        with self._lock:
            alert = self._ledger.due(self._clock())
            node = {} if self._look is None else self._look.node
            # On record before it is sent: a kill repeats it with the same id.
            if alert is not None and self._ledger.attempt(alert):
                self._unsaved = True
            given_up, self._ledger.given_up = self._ledger.given_up, 0
        self._save()
        if given_up:
            get_logger().error(
                f"gave up {given_up} ends of problems that were to be sent by"
                f" {self._channel.name}",
                detail="Too many ends wait for a channel that accepts none.",
            )
        if alert is None:
            return False
        failure = self._failure(alert, node)
        with self._lock:
            if failure is None:
                self._ledger.sent(alert)
                # It is written before the next attempt, or before the thread waits.
                self._unsaved = True
                return True
            doubtful = not isinstance(failure, DeliveryError) or failure.doubtful
            if self._ledger.failed(alert, self._clock(), doubtful=doubtful):
                self._unsaved = True
        self._save()
        # The others would probably fail as well, each after its time-out.
        return False

    def _failure(self, alert: Alert, node: dict[str, Any]) -> Exception | None:
        """Deliver an alert; returns the error if that has failed."""
        try:
            self._channel.deliver(
                message(alert, node), {"id": alert.id, "event": alert.event}
            )
        except Exception as error:
            self._errors.say(get_logger(), "could not send an alert", error)
            rest = min(_LONGEST_REST, 2.0 ** min(self._failures, 16))
            self._failures += 1
            self._rests_until = time.monotonic() + rest
            return error
        self._failures = 0
        self._errors.passed(get_logger())
        return None

    def _take(self) -> bool:
        """Take over the ledger's file, unless that is done; returns False if it must wait."""
        if self._owns:
            return True
        try:
            if not self._file.is_held and not self._file.lock():
                self._say_who_sends()
                return False
            ledger = self._read()
        except OSError as error:
            # Nothing is known about what has been sent, so nothing is sent.
            self._say("read", error)
            return False
        with self._lock:
            ledger.delay = self._ledger.delay
            self._ledger = ledger
            if self._look is not None:
                ledger.observe(self._look.problems, self._look.moment)
            # The file is to name this process as its owner.
            self._owns = self._unsaved = True
        if self._warned:
            get_logger().info(f"this process now sends alerts by {self._channel.name}")
        return True

    def _read(self) -> AlertLedger:
        """Return the ledger of the file. Raises OSError."""
        ledger = AlertLedger(0)
        try:
            ledger.restore(self._file.read())
        except ValueError:
            aside = self._file.set_aside()
            get_logger().error(
                f'invalid data in file "{self._file.path}"',
                detail=f'It was renamed to "{aside}". Problems that have been announced'
                " are announced again.",
            )
        return ledger

    def _say_who_sends(self) -> None:
        if self._warned:
            return
        owner = self._file.owner()
        # A sender of this process ends with its delivery.
        if owner == os.getpid():
            return
        self._warned = True
        by = "" if owner is None else f" (PID {owner})"
        get_logger().warning(
            f"another process{by} sends alerts by {self._channel.name}",
            detail="This process takes over when the other one has ended.",
        )

    def _save(self) -> None:
        with self._lock:
            if not self._unsaved or not self._owns:
                return
            entries = self._ledger.to_json()
            self._unsaved = False
        try:
            self._file.write(entries)
        except OSError as error:
            # The alert may say that the disk is full, so it is sent all the same.
            with self._lock:
                self._unsaved = True
            self._say("write", error)
        else:
            self._file_errors.passed(get_logger())

    def _say(self, verb: str, error: OSError) -> None:
        failure = StorageError(
            f'could not {verb} file "{self._file.path}": {reason_of(error)}',
            sqlstate="53100" if error.errno == errno.ENOSPC else "58030",
        )
        self._file_errors.say(
            get_logger(), "the ledger of alerts is not usable", failure
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
    text = json.dumps(content, ensure_ascii=False)
    # A path that is not UTF-8 has characters that cannot be sent.
    return text.encode(errors="replace").decode()


class Alerts:
    """The channels of the settings in force. For the thread that reads, and for ``reload``."""

    def __init__(self, settings: Settings) -> None:
        """Touch nothing yet; ``start`` starts the threads."""
        self._lock = threading.Lock()
        self._senders = [_sender(c, settings) for c in _channels(settings)]

    def start(self) -> None:
        """Start the threads that are not started. For a process that serves: they take the
        ledgers."""
        with self._lock:
            for sender in self._senders:
                sender.start()

    def reload(self, settings: Settings) -> None:
        """Use new settings. A channel that stays goes on; one that is new, or whose thread has
        ended, waits for ``start``."""
        with self._lock:
            channels = list(_channels(settings))
            running = {s.channel: s for s in self._senders if not s.is_over}
            for channel in running.keys() - set(channels):
                running.pop(channel).stop()
            self._senders = [
                running.get(channel) or _sender(channel, settings)
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


def _sender(channel: AlertChannel, settings: Settings) -> Sender:
    return Sender(channel, settings.run_directory, settings.alerts.delay_ms / 1000)
