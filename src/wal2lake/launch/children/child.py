"""Prepares every child of the supervisor, and defines what the engine reads from it.

The supervisor starts ``python -m wal2lake.launch MODULE ARGUMENT...``. ``main`` ties the new
process to the supervisor's life and then runs MODULE in it, as ``python -m`` would. Workers
therefore need no code for the tie, and it exists before the first heavy import. With ``--spare
MODULE`` the process imports first and learns later what to run.

There are two ties, because each has a gap. The kernel's parent-death signal works in any state of
this process, but only on Linux. The *lifeline*, a pipe whose writing end only the supervisor has,
works everywhere, and its reader can kill the whole process group.

Takes environment variables (below); ends with the module's exit code.

Source: prctl(2), PR_SET_PDEATHSIG and PR_SET_NAME.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

SUPERVISOR_PID: Final = "WAL2LAKE_SUPERVISOR_PID"
"""Environment variable with the supervisor's pid."""

LIFELINE_FD: Final = "WAL2LAKE_LIFELINE_FD"
"""Environment variable with the descriptor of the lifeline's reading end."""

LISTEN_FD: Final = "WAL2LAKE_LISTEN_FD"
"""Environment variable of the engine with the descriptors of the listening sockets, separated by
commas."""

SPARE: Final = "--spare"
"""Comes before a MODULE that will be run when standard input sends its command line."""

EXIT_CONFIGURATION: Final = 78
"""Exit code (EX_CONFIG) of an engine that cannot run until the configuration is corrected. At the
node's start it ends the node; later it is throttled like a crash."""

EXIT_WAREHOUSE_TAKEN: Final = 79
"""Exit code of an engine whose warehouse another node has taken, or whose node another machine has
become. It ends the node at any time."""

_HELD: Final = frozenset({signal.SIGHUP, signal.SIGUSR1})
"""Signals that would kill a process which has not yet said what they mean to it."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Keep signals that are sent to a new child until its ``main`` can take them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watch_supervisor(environ: Mapping[str, str] | None = None) -> None:
    """Tie this process to the supervisor's life. Does nothing in a process without one."""
    variables = os.environ if environ is None else environ
    if LIFELINE_FD not in variables:
        return
    lifeline = int(variables[LIFELINE_FD])
    os.set_inheritable(lifeline, False)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The supervisor may have died before that call; then the parent is another process.
    if os.getppid() != int(variables[SUPERVISOR_PID]):
        _die()
    threading.Thread(
        target=_read_lifeline, args=(lifeline,), name="lifeline", daemon=True
    ).start()


def listening_sockets(
    environ: Mapping[str, str] | None = None,
) -> list[socket.socket]:
    """Return the sockets that the supervisor listens on, for the engine to accept from.

    They are blocking, already listening, and not inherited further. Empty in a process that a
    supervisor has not started.
    """
    variables = os.environ if environ is None else environ
    sockets = []
    for text in filter(None, variables.get(LISTEN_FD, "").split(",")):
        descriptor = int(text)
        os.set_inheritable(descriptor, False)
        sockets.append(socket.socket(fileno=descriptor))
    return sockets


def main(arguments: Sequence[str]) -> None:
    """Run the module ``arguments[0]`` with the other arguments as its command line."""
    # The supervisor handles SIGHUP and signals the engine, which catches it. Sent to another
    # child by mistake, it must not kill.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A crash in native code prints the stacks of all threads into the log. So does SIGUSR1, for
    # finding out what a worker is waiting for.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    # Before there is a thread, which would inherit the mask.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    watch_supervisor()
    if arguments[0] == SPARE:
        _name_process("spare")
        command = _become(arguments[1])
        if command is None:
            return
        arguments = command
    module, *rest = arguments
    _name_process(module)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _become(module: str) -> Sequence[str] | None:
    """Import what ``module`` needs, then wait for a module and its arguments (``spare``)."""
    main_module = f"{module}.__main__"
    importlib.import_module(main_module)
    # The module will be run anew, under the name __main__.
    del sys.modules[main_module]
    line = sys.stdin.readline()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    if not line.endswith("\n"):
        return None
    command: list[str] = json.loads(line)
    return command


def _read_lifeline(lifeline: int) -> None:
    # Nothing is ever written: a read returns at the end only.
    if os.read(lifeline, 1) == b"":
        _die()


def _die() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _name_process(module: str) -> None:
    # The name that top and ps -o comm show, of up to 15 bytes.
    role = module.removeprefix("wal2lake.").rpartition(".")[2]
    name = ctypes.create_string_buffer(f"wal2lake-{role}".encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(name))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(
            ctypes.c_int(option), ctypes.c_ulong(value), 0, 0, 0
        )
