"""The first process of a node, PostgreSQL's postmaster.

Takes the directory's lock and the listening sockets, then repeats: reap ended children, compare the
desired workers (catalog) with the running ones (``plan``), act, and wait for a signal, a word from
the engine, or a second. The supervisor opens no connection, reads no table, and imports neither
Spark nor NumPy, so little in it can fail: when an engine or a JVM dies, this process and the
receivers go on.

    SIGTERM, SIGINT   fast shutdown       SIGHUP    read the settings again
    SIGQUIT           immediate shutdown  SIGUSR1   read the catalog now
    SIGUSR2           smart shutdown      SIGCHLD   reap children now

Exit codes: 0 after a requested shutdown; 1 if the node could not start (a port in use, no Java) or
had to end by itself.

What fails outside of this process does not end the node. A fork, a catalog or a status file that
fails is logged where it fails and tried again, and any other error of the system (no descriptor, no
memory) is met by repeating the round, also while the node stops: a round compares what is with what
should be, so it can be repeated. An exception of another kind is a bug, after which nothing is
known of the state; then the node is ended at once with the reason in its log, and the service
manager starts it again. The postmaster does the same, and a supervisor in an unknown state might
run two engines.

Called by: ``start.node``. Sources: postmaster.c (order of shutdown, texts), launcher.c.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from wal2lake import __version__
from wal2lake.catalog import Subscription
from wal2lake.errors import ConfigurationError, Wal2LakeError, reason_of
from wal2lake.launch import listeners as listening
from wal2lake.launch import shutdown
from wal2lake.launch.children.attendants import Attendant
from wal2lake.launch.children.child import (
    EXIT_CONFIGURATION,
    EXIT_WAREHOUSE_TAKEN,
)
from wal2lake.launch.children.group import (
    Children,
    Commands,
    Ended,
    describe,
)
from wal2lake.launch.children.guardian import start_guardian
from wal2lake.launch.children.nodelog import NodeLog
from wal2lake.launch.directory.holder import this_start
from wal2lake.launch.directory.lockfile import LockFile
from wal2lake.launch.directory.report import StatusReport
from wal2lake.launch.directory.status import NodeStatus
from wal2lake.launch.directory.storetrial import check_log_store
from wal2lake.launch.directory.warehouse import check_warehouse, warehouse_lock
from wal2lake.launch.plan import (
    ENGINE,
    WEB,
    ChildRole,
    Desired,
    Kill,
    LaunchPolicy,
    Past,
    Plan,
    Start,
    Stop,
    WorkerKey,
    plan,
    remember,
)
from wal2lake.launch.processes import (
    describe_exit,
    directory_marker,
    kill_marked,
    new_marker,
)
from wal2lake.launch.requests import check_request, promptly
from wal2lake.launch.servicemanager import VARIABLES, ServiceManager
from wal2lake.launch.shutdown import Mode, Phase
from wal2lake.launch.wakeup import CHANGED, READY, RELOAD, Wake, Wakeup
from wal2lake.model import HOLDER
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.settings import Settings, changes

POLL_SECONDS: Final = 1.0
"""Interval for reading the catalog, even without a word about changes."""

RECEIVER_STOP_SECONDS: Final = 5.0
"""A receiver that must end has only one message to send; it is killed after this time. So is the
web process, which ends its connections. Chosen arbitrarily."""

_RELOAD_STEP: Final = 1 << 32
"""The catalog's generations are smaller, so each reload makes a new generation of each."""

_GRACE_SECONDS: Final = 2.0
"""Time beyond shutdown_timeout_ms, when the engine abandons its work, for its last threads to
end."""


class SubscriptionCatalog(Protocol):
    """The part of the catalog that the supervisor reads."""

    @property
    def change_counter(self) -> int:
        """A number that stays the same while nothing changes."""

    def subscriptions(self) -> Sequence[Subscription]:
        """Return all subscriptions."""


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Facts that stay fixed once the node has started. ``sockets`` close to refuse clients."""

    sockets: list[socket.socket]
    address: str
    port: int
    started_at: float


class Supervisor:
    """The supervisor of one node. Call ``run`` once, in the main thread of its own process."""

    def __init__(
        self,
        settings: Settings,
        *,
        catalog: SubscriptionCatalog,
        commands: Commands,
        reload: Callable[[], Settings],
        environ: Mapping[str, str],
        lock: LockFile,
        log: NodeLog,
        node: int,
    ) -> None:
        """``environ`` is passed to the children; ``reload`` reads the settings again. ``lock`` is
        the directory's, ``node`` the node's system identifier."""
        self._settings = settings
        self._directory = settings.directory.resolve()
        self._catalog = catalog
        self._commands = commands
        self._reload = reload
        self._environ = {k: v for k, v in environ.items() if k not in VARIABLES}
        self._node = node
        self._manager = ServiceManager(environ)
        self._lock = lock
        self._report = StatusReport(lock, self._directory, settings.run_directory)
        self._node_log = log
        self._log = get_logger()
        self._phase = Phase.RUNNING
        self._state = "starting"
        self._was_ready = False
        self._past: dict[WorkerKey, Past] = {}
        self._subscribed: list[Desired] = []
        self._seen_counter: int | None = None
        self._reloads = 0
        self._engine_is_told = True
        """True once the engine knows the newest settings."""
        self._out_of_slots: tuple[Desired, ...] = ()
        self._catalog_errors, self._round_errors = RepeatedErrors(), RepeatedErrors()
        self._is_interrupted = False
        self._unheard: deque[signal.Signals | str] = deque()
        self._engine_drains = False
        """True once the engine has been told of a smart shutdown."""
        self._exit_code = 0

    def run(self) -> int:
        """Run the node until it is stopped; returns the exit code.

        ConfigurationError if a port is taken; StopRequested before the first child is started.
        """
        with contextlib.ExitStack() as stack:
            run_directory = self._settings.run_directory
            run_directory.mkdir(mode=0o700, exist_ok=True)
            marker = new_marker(self._directory)
            stack.callback(self._manager.close)
            lifeline, ours = os.pipe()
            self._guardian = Attendant(
                "guardian",
                lambda: start_guardian(marker, lifeline, [self._lock.fileno]),
            )
            # Closing our end of the lifeline notifies everybody. The guardian gives up the lock
            # and is reaped before this process does.
            stack.callback(self._guardian.part)
            stack.callback(os.close, ours)
            stack.callback(os.close, lifeline)
            self._guardian.keep(time.monotonic())
            # If the lock file is gone already, the first round ends this node.
            before, remains = directory_marker(self._directory), 0
            if self._lock.is_in_place():
                # A search that is left behind must not meet the children of the next node.
                remains = promptly(lambda: kill_marked(before, on_wait=check_request))
            if remains:
                self._log.warning(
                    f"killed {remains} processes that an earlier node left behind"
                )
            node = self._settings.node
            self._log.info(f"starting wal2lake {__version__} on {_platform()}")
            start = this_start(self._node, self._directory, marker)
            self._environ[HOLDER] = start.render()
            # A mount or a name server may hang.
            promptly(lambda: check_warehouse(self._settings, self._environ))
            promptly(lambda: check_log_store(self._settings, self._environ))
            shared = warehouse_lock(self._settings, start)
            if shared is not None:
                stack.enter_context(shared)
                promptly(shared.take)
            sockets = promptly(
                lambda: listening.open_listeners(node.listen_addresses, node.port)
            )
            stack.callback(_close, sockets)
            self._fixed = _Fixed(
                sockets,
                listening.reachable_address(sockets[0]),
                sockets[0].getsockname()[1],
                time.time(),
            )
            self._children = Children(
                marker,
                self._commands,
                self._environ,
                lifeline=lifeline,
                listeners=[s.fileno() for s in sockets],
                engine_holds=() if shared is None else shared.descriptors,
            )
            self._wakeup = stack.enter_context(
                Wakeup(run_directory, self._lock.is_in_place)
            )
            self._loop()
        return self._exit_code

    # ---- the loop -----------------------------------------------------------------

    def _loop(self) -> None:
        try:
            timeout = 0.0
            while self._phase is not Phase.DONE:
                timeout = self._round(timeout)
        except Exception as error:
            self._log.critical("the supervisor has failed", exc_info=error)
            self._exit_code = 1
        finally:
            # After a bug of ours, too: no child may run without a supervisor.
            self._children.dismiss_spare()
            for key in self._children.workers():
                self._children.kill(key)
        if self._exit_code == 0:
            self._log.info("database system is shut down")

    def _round(self, timeout: float) -> float:
        """Wait for a reason or the timeout, then compare what is with what should be, and act;
        returns the timeout of the next round."""
        failure: OSError | MemoryError | None = None
        try:
            self._hear(self._wakeup.wait(timeout))
        except (OSError, MemoryError) as error:
            failure = error
        try:
            timeout = self._compare()
        except (OSError, MemoryError) as error:
            failure = error
            self._is_interrupted = True
        if failure is None:
            self._round_errors.passed(self._log)
            return timeout
        with contextlib.suppress(MemoryError):
            self._round_errors.say(
                self._log, "the supervisor lacks a resource, trying again", failure
            )
        # It has reaped its children and obeys signals, so it is alive, and the machine would lack
        # the same for a node that the service manager starts instead.
        self._manager.tell(self._state)
        # Not at once, even if a signal comes.
        time.sleep(min(POLL_SECONDS, self._manager.patience_seconds))
        return 0.0

    def _hear(self, wake: Wake) -> None:
        # An error leaves the others for the next round.
        self._unheard.extend((*wake.signals, *wake.words))
        while self._unheard:
            heard = self._unheard.popleft()
            if isinstance(heard, signal.Signals):
                self._on_signal(heard)
            else:
                self._on_word(heard)

    def _compare(self) -> float:
        # First what needs no descriptor, and what a shutdown waits for.
        self._reap()
        now = time.monotonic()
        self._guardian.keep(now)
        self._node_log.keep(now)
        self._check_lock()
        self._phase = shutdown.advance(
            self._phase, [k.role for k in self._children.workers()]
        )
        if self._phase is Phase.DONE:
            return 0.0
        self._press()
        if self._is_interrupted and self._phase is Phase.RUNNING:
            # The round before this one may have started a process without noting it. In another
            # phase nothing is started beside it, and the guardian kills it in the end.
            self._children.kill_lost()
            self._is_interrupted = False
        wake_at = self._act()
        self._write_status()
        self._manager.tell(self._state)
        timeout = min(POLL_SECONDS, self._manager.patience_seconds)
        if wake_at is not None:
            timeout = min(timeout, wake_at - time.monotonic())
        return timeout

    def _check_lock(self) -> None:
        # Also while the node drains: its last client may stay for days.
        if self._phase is not Phase.ABORTING and not self._lock.is_in_place():
            # Another node could start in the directory, or has.
            self._log.critical(
                "performing immediate shutdown because the node's lock file is gone"
            )
            self._exit_code = 1
            self._shut_down(Mode.IMMEDIATE)

    def _press(self) -> None:
        """Do what a shutdown asks for beyond the plan."""
        if self._phase is Phase.DRAINING and not self._engine_drains:
            self._children.send(ChildRole.ENGINE, signal.SIGUSR2)
            self._engine_drains = True
        elif self._phase is Phase.ABORTING:
            for key in self._children.workers():
                child = self._children.get(key)
                if child is not None and not child.running.killed:
                    self._children.kill(key)

    def _act(self) -> float | None:
        now = time.monotonic()
        if self._phase is Phase.RUNNING:
            self._read_catalog()
        decided = plan(
            shutdown.wanted(
                self._phase,
                self._subscribed,
                self._children.desired(ChildRole.RECEIVER),
                self._web(),
            ),
            self._children.running(),
            self._past,
            now,
            self._policy(),
        )
        self._report_out_of_slots(decided)
        if self._phase is not Phase.RUNNING:
            self._children.dismiss_spare()
        elif self._state == "ready":
            self._children.prepare(now)
        wake_at = decided.wake_at
        for action in decided.actions:
            if isinstance(action, Start):
                if not self._start(action.worker, now):
                    wake_at = now
            elif isinstance(action, Stop):
                self._children.stop(action.key, signal.SIGTERM, now)
            elif isinstance(action, Kill):
                self._kill(action.key)
        if any(not isinstance(action, Start) for action in decided.actions):
            # The actions change the deadlines, or end workers, so plan again.
            wake_at = now
        return wake_at

    def _start(self, worker: Desired, now: float) -> bool:
        try:
            child = self._children.start(worker, now)
        except OSError as error:
            self._log.error(f"could not fork {describe(worker)}: {reason_of(error)}")
            before = self._past.get(worker.key)
            failures = 1 + (before.failures if before else 0)
            self._past[worker.key] = Past(worker.generation, now, now, failures)
            return False
        if worker.key.role is ChildRole.RECEIVER:
            self._log.info(
                f'receiver for subscription "{worker.name}" has started',
                pid=child.process.pid,
            )
        return True

    def _kill(self, key: WorkerKey) -> None:
        child = self._children.get(key)
        if child is not None:
            self._log.warning(f"{child.label} did not stop in time, sending it SIGKILL")
            self._children.kill(key)

    def _reap(self) -> None:
        for ended in self._children.reap():
            self._on_end(ended)
        self._reap_strangers()

    def _reap_strangers(self) -> None:
        # These are the guardian and, as process 1 of a container, any orphan.
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None or self._children.has_pid(info.si_pid):
                return
            _, status = os.waitpid(info.si_pid, 0)
            now = time.monotonic()
            self._guardian.note_end(info.si_pid, status, now)
            self._node_log.note_end(info.si_pid, status, now)

    def _on_end(self, ended: Ended) -> None:
        child, now = ended.child, time.monotonic()
        key = child.running.key
        requested = child.running.stopping_since is not None
        self._past[key] = remember(child.running, self._past.get(key), now)
        if key == ENGINE and self._phase is Phase.RUNNING:
            self._state = "starting"
        text = f"{child.label} {describe_exit(ended.returncode)}"
        if requested and ended.returncode == 0:
            self._log.debug(text)
        else:
            self._log.info(text)
        if ended.remains:
            self._log.info(f"killed {ended.remains} processes that it left behind")
        if key != ENGINE:
            return
        if ended.returncode == EXIT_WAREHOUSE_TAKEN:
            # The engine has logged by whom. Receivers of the same node may run there, too. In a
            # shutdown, too, its end is no success: another node may run on a copy of this one.
            self._log.critical("the warehouse is lost, shutting down")
            self._exit_code = 1
            self._shut_down(Mode.FAST)
        elif (
            self._phase is Phase.RUNNING
            and ended.returncode == EXIT_CONFIGURATION
            and not self._was_ready
        ):
            # The engine has logged the reason; a restart would only repeat it.
            self._log.critical("the engine could not start, shutting down")
            self._exit_code = 1
            self._shut_down(Mode.FAST)

    # ---- events -----------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        mode = shutdown.mode_of_signal(number)
        if mode is not None:
            self._log.info(f"received {mode.value} shutdown request")
            self._shut_down(mode)
        elif number == signal.SIGHUP:
            self._reload_settings()
        elif number == signal.SIGUSR1:
            self._seen_counter = None

    def _on_word(self, word: str) -> None:
        if word == CHANGED:
            self._seen_counter = None
        elif word == RELOAD:
            self._reload_settings()
        elif self._phase is Phase.RUNNING and self._state == "starting":
            engine = self._children.get(ENGINE)
            if engine is None or word != f"{READY} {engine.process.pid}":
                return
            self._was_ready = True
            self._state = "ready"
            for listener in self._fixed.sockets:
                self._log.info(f"listening on {listening.describe(listener)}")
            self._log.info("database system is ready to accept connections")
            self._tell_engine()

    def _shut_down(self, mode: Mode) -> None:
        before, self._phase = self._phase, shutdown.request(self._phase, mode)
        if self._phase is before:
            return
        self._state = "stopping"
        # The engine has its own copies and stops accepting when it is signalled.
        _close(self._fixed.sockets)

    def _reload_settings(self) -> None:
        self._log.info("received SIGHUP, reloading configuration files")
        self._manager.reloading()
        self._node_log.reload()
        try:
            settings = self._reload()
        except Wal2LakeError as error:
            self._log.error(
                "configuration file contains errors; no changes were applied",
                error=error,
            )
            return
        except Exception as error:
            self._log.error("no changes were applied", exc_info=error)
            return
        differing = changes(self._settings, settings)
        for change in differing:
            if change.restart:
                self._log.warning(
                    f'parameter "{change.name}" cannot be changed without restarting the'
                    " server"
                )
            else:
                value = "" if change.secret else f' to "{change.value}"'
                self._log.info(f'parameter "{change.name}" changed{value}')
        self._settings = settings
        effective = [change for change in differing if not change.restart]
        if any(change.receivers for change in effective):
            # Receivers read the settings at their start. A restart costs a reconnect and the
            # snapshot that tables are copied under. As another generation, they are replaced at
            # once.
            self._reloads += 1
            self._seen_counter = None
        # Even without differences, the certificate or the hba_file may have changed.
        self._engine_is_told = False
        self._tell_engine()
        # It ignores the signal until it can handle it, and reads the settings after that.
        self._children.send(ChildRole.WEB, signal.SIGHUP)

    def _tell_engine(self) -> None:
        """Signal a reload. Not while the engine starts: it does not handle the signal yet."""
        if not self._engine_is_told and self._state == "ready":
            self._children.send(ChildRole.ENGINE, signal.SIGHUP)
            self._engine_is_told = True

    # ---- facts ------------------------------------------------------------------------

    def _read_catalog(self) -> None:
        try:
            counter = self._catalog.change_counter
            if counter == self._seen_counter:
                self._catalog_errors.passed(self._log)
                return
            subscriptions = self._catalog.subscriptions()
        except Exception as error:
            # The desired workers stay the same. Besides StorageError, a file that is damaged or
            # was replaced raises errors of SQLite, and its values those of their types.
            self._catalog_errors.say(self._log, "could not read the catalog", error)
            return
        self._catalog_errors.passed(self._log)
        self._seen_counter = counter
        self._subscribed = [
            Desired(
                WorkerKey(ChildRole.RECEIVER, s.oid),
                s.name,
                s.generation + self._reloads * _RELOAD_STEP,
            )
            for s in subscriptions
            if s.runs and s.slot_name is not None
        ]
        keys = {d.key for d in self._subscribed} | {ENGINE, WEB}
        keys.update(self._children.workers())
        self._past = {k: p for k, p in self._past.items() if k in keys}

    def _web(self) -> list[Desired]:
        alerts = self._settings.alerts
        wanted = self._settings.web.listen or alerts.webhook_url or alerts.command
        return [Desired(WEB)] if self._commands.web and wanted else []

    def _policy(self) -> LaunchPolicy:
        subscription = self._settings.subscription
        return LaunchPolicy(
            subscription.wal_retrieve_retry_interval_ms / 1000,
            {
                ChildRole.ENGINE: self._settings.node.shutdown_timeout_ms / 1000
                + _GRACE_SECONDS,
                ChildRole.RECEIVER: RECEIVER_STOP_SECONDS,
                ChildRole.WEB: RECEIVER_STOP_SECONDS,
            },
            subscription.max_logical_replication_workers,
        )

    def _report_out_of_slots(self, decided: Plan) -> None:
        if decided.out_of_slots and decided.out_of_slots != self._out_of_slots:
            names = ", ".join(f'"{d.name}"' for d in decided.out_of_slots)
            self._log.warning(
                "out of logical replication worker slots",
                error=ConfigurationError(
                    "out of logical replication worker slots",
                    detail=f"Subscriptions that do not run: {names}.",
                    hint="You might need to increase"
                    ' "subscription.max_logical_replication_workers".',
                ),
            )
        self._out_of_slots = decided.out_of_slots

    def _write_status(self) -> None:
        fixed = self._fixed
        status = NodeStatus(
            supervisor_pid=os.getpid(),
            guardian_pid=self._guardian.pid,
            state=self._state,
            version=__version__,
            address=fixed.address,
            port=fixed.port,
            started_at=fixed.started_at,
            workers=self._children.statuses(),
        )
        self._report.write(status)


def _platform() -> str:
    return f"{platform.machine()}-{platform.system().lower()}, Python " + (
        platform.python_version()
    )


def _close(sockets: list[socket.socket]) -> None:
    for listener in sockets:
        listener.close()
