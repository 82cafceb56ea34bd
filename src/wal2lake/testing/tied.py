"""Commands that die with the process that started them.

Comes in: a command, perhaps an OS user. Goes out: a command that sets its parent-death signal and
then executes the given one (with the same PID), so that no server survives a test run, however the
run ends. A small Python program does this instead of ``preexec_fn``, which is unsafe in a process
with threads. It sets the signal after it has changed the user, which would clear the signal.

The kernel sends the signal when the starting *thread* ends: start from one that lives long enough.
This works on Linux only; elsewhere the program is started without the signal.

Called by: ``postgres``, ``node``. Source: prctl(2), PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
from typing import Final

_BECOME: Final = """
import ctypes, os, sys
parent, number, uid, gid, *command = sys.argv[1:]
if uid:
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
    os.umask(0o077)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(number), 0, 0, 0)
if os.getppid() != int(parent):
    sys.exit(1)
os.execv(command[0], command)
"""


def tied(
    *command: str, user: str | None = None, death: signal.Signals = signal.SIGKILL
) -> list[str]:
    """Return the command line that starts ``command`` and sends it ``death`` when we die.

    ``command[0]`` is a path. With ``user`` the command runs as that OS user.
    """
    account = pwd.getpwnam(user) if user else None
    return [
        sys.executable,
        "-IS",
        "-c",
        _BECOME,
        str(os.getpid()),
        str(int(death)),
        str(account.pw_uid) if account else "",
        str(account.pw_gid) if account else "",
        *command,
    ]
