"""Starting a program that dies with its starter.

Comes in: a command, perhaps an OS user. Goes out: a command that becomes it (same pid) after
binding itself to the life of this process: whatever a test run is killed by, no server of it
stays. By a small Python of its own instead of ``preexec_fn``, which is unsafe in a starter that
has threads; and after the change of user, which clears the parent-death signal.

The kernel means the *thread* that starts it: start from one that lives long enough. Linux only;
elsewhere the program is just started.

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
    """The command line that starts ``command``, to be sent ``death`` when we die.

    ``command[0]`` is a path. With ``user`` it runs as that OS user.
    """
    found = pwd.getpwnam(user) if user else None
    return [
        sys.executable,
        "-IS",
        "-c",
        _BECOME,
        str(os.getpid()),
        str(int(death)),
        str(found.pw_uid) if found else "",
        str(found.pw_gid) if found else "",
        *command,
    ]
