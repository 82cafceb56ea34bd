"""Prepares every child of the supervisor, and carries requests of the engine.

The supervisor starts ``python -m wal2lake.launch MODULE ARGUMENT...``. ``main`` ties the new
process to the supervisor's life and then runs MODULE in it, as ``python -m`` would. So no
worker has to know who watches it, and the watch stands before the first heavy import. With
``--spare MODULE`` it imports first and is told later what to run.

Two ties, because each has a gap. The kernel's parent-death signal works in any state of
this process, but only on Linux. The *lifeline*, a pipe of which only the supervisor has the
writing end, works everywhere, and its reader can take the whole process group along.

Comes in: environment variables (below). Goes out: the module's own exit code.

Source: prctl(2), PR_SET_PDEATHSIG and PR_SET_NAME.
"""

from __future__ import annotations

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SUPERVISOR_PID: Final = "WAL2LAKE_SUPERVISOR_PID"
"""Environment variable: the supervisor's pid."""

LIFELINE_FD: Final = "WAL2LAKE_LIFELINE_FD"
"""Environment variable: descriptor of the lifeline's reading end."""

LISTEN_FD: Final = "WAL2LAKE_LISTEN_FD"
"""Environment variable of the engine: descriptors of the listening sockets, commas
between them."""

SPARE: Final = "--spare"
"""In place of MODULE: the one behind it will be run, with what standard input says."""

EXIT_CONFIGURATION: Final = 78
"""Exit code (EX_CONFIG) of an engine that cannot run before somebody changes
something. At the node's start it ends the node; later it is throttled like a crash."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


def watch_supervisor(environ: Mapping[str, str] | None = None) -> None:
    """Die when the supervisor dies. Does nothing in a process that has none."""
    variables = os.environ if environ is None else environ
    if LIFELINE_FD not in variables:
        return
    lifeline = int(variables[LIFELINE_FD])
    os.set_inheritable(lifeline, False)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before that call; then somebody else is the parent now.
    if os.getppid() != int(variables[SUPERVISOR_PID]):
        _die()
    threading.Thread(
        target=_read_lifeline, args=(lifeline,), name="lifeline", daemon=True
    ).start()


def listening_sockets(
    environ: Mapping[str, str] | None = None,
) -> list[socket.socket]:
    """The sockets that the supervisor listens on; the engine accepts from them.

    Blocking, already listening, not inherited further. Empty in a process that was not
    started by a supervisor.
    """
    variables = os.environ if environ is None else environ
    found = []
    for text in filter(None, variables.get(LISTEN_FD, "").split(",")):
        descriptor = int(text)
        os.set_inheritable(descriptor, False)
        found.append(socket.socket(fileno=descriptor))
    return found


def main(arguments: Sequence[str]) -> None:
    """Run ``arguments[0]``, a module, with the others as its command line."""
    watch_supervisor()
    # A reload is the supervisor's affair, which tells the engine; sent to another child
    # by mistake it must not kill.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A crash in native code, or SIGUSR1 from whoever wants to know what a worker is
    # waiting for, prints the stacks of all threads into the log.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    if arguments[0] == SPARE:
        _name_process("spare")
        told = _become(arguments[1])
        if told is None:
            return
        arguments = told
    module, *rest = arguments
    _name_process(module)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _become(module: str) -> Sequence[str] | None:
    """Import what ``module`` needs, then wait for a module and its arguments; see
    ``spare``."""
    main_module = f"{module}.__main__"
    importlib.import_module(main_module)
    # It is to be run, as another one of that name.
    del sys.modules[main_module]
    line = sys.stdin.readline()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    if not line.endswith("\n"):
        return None
    told: list[str] = json.loads(line)
    return told


def _read_lifeline(lifeline: int) -> None:
    # Nobody ever writes: the only news is the end.
    if os.read(lifeline, 1) == b"":
        _die()


def _die() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _name_process(module: str) -> None:
    # What top and ps -o comm show: 15 bytes.
    role = module.removeprefix("wal2lake.").rpartition(".")[2]
    name = ctypes.create_string_buffer(f"wal2lake-{role}".encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(name))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(
            ctypes.c_int(option), ctypes.c_ulong(value), 0, 0, 0
        )
