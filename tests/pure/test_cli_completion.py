"""Completion scripts in the shells themselves; zsh and fish where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from wal2lake.cli.completion.describe import CompletionKind, describe_program
from wal2lake.cli.completion.shells import SHELLS
from wal2lake.cli.options import EXIT_CODES, build_parser

PROGRAM = describe_program(build_parser())
COMMANDS = {command.name for command in PROGRAM.commands}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shell, script in SHELLS.items():
        (tmp_path / f"wal2lake.{shell}").write_text(script(PROGRAM))
    (tmp_path / "a node").mkdir()
    (tmp_path / "a file").touch()
    return tmp_path


def needs(shell: str) -> str:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    return program


def in_bash(folder: Path, *words: str) -> set[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"source wal2lake.bash; COMP_WORDS=(wal2lake {quoted}); "
        f"COMP_CWORD={len(words)}; _wal2lake; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        [needs("bash"), "-u", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(filter(None, done.stdout.split("\n")))


def in_fish(folder: Path, line: str) -> set[str]:
    done = subprocess.run(
        [
            needs("fish"),
            "--no-config",
            "-c",
            f"source wal2lake.fish; complete -C '{line}'",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {row.partition("\t")[0] for row in done.stdout.splitlines()}


def in_zsh(folder: Path, line: str) -> str:
    """What zsh writes to a terminal of its own when Tab is pressed twice behind ``line``.

    It shows no list while more input is waiting, so the end of its work cannot be asked for."""
    script = f"""
    zmodload zsh/zpty
    zpty z 'zsh -f -i'
    zpty -w z "PS1=; unsetopt beep; autoload -Uz compinit; compinit -u -d {folder}/dump"
    zpty -w z "zstyle ':completion:*' list-prompt ''; LISTMAX=1000; stty columns 200"
    zpty -w z "source {folder}/wal2lake.zsh; cd {folder}; print READY"
    zpty -r z output '*READY*READY*'
    zpty -n -w z $'{line}\\t\\t'
    sleep 0.5
    zpty -n -w z $'\\x15print -r END\\n'
    zpty -r z output '*END*END*'
    print -r -- "$output"
    """
    done = subprocess.run(
        [needs("zsh"), "-f", "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "TERM": "xterm"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_and_option_is_described() -> None:
    assert set(EXIT_CODES) == COMMANDS
    for command in PROGRAM.commands:
        assert command.help, command.name
        assert 0 in EXIT_CODES[command.name]
        for option in command.options:
            assert option.help, (command.name, option.names)
            if option.metavar in ("DIR", "FILE"):
                assert option.kind in (CompletionKind.DIRECTORY, CompletionKind.FILE)


def test_bash_completes_commands_options_and_values(folder: Path) -> None:
    assert in_bash(folder, "st") == {"start", "stop", "status"}
    assert in_bash(folder, "") > COMMANDS
    assert {"--mode", "-m", "--help"} < in_bash(folder, "stop", "-")
    assert in_bash(folder, "stop", "--m") == {"--mode"}
    assert in_bash(folder, "stop", "-m", "") == {"smart", "fast", "immediate"}
    assert in_bash(folder, "stop", "-m", "fast", "-D", "") == {"a node"}
    assert in_bash(folder, "sql", "-D", "stop", "-f", "a") == {"a node", "a file"}
    assert in_bash(folder, "sql", "-D", "x", "-c", "") == set()
    assert in_bash(folder, "completion", "z") == {"zsh"}


def test_fish_completes_commands_options_and_values(folder: Path) -> None:
    assert in_fish(folder, "wal2lake st") == {"start", "stop", "status"}
    assert {"--mode", "--help"} <= in_fish(folder, "wal2lake stop --")
    assert in_fish(folder, "wal2lake stop -m ") == {"smart", "fast", "immediate"}
    assert in_fish(folder, "wal2lake stop -D ") == {"a node/"}
    assert in_fish(folder, "wal2lake completion ") == {"bash", "zsh", "fish"}


def test_zsh_completes_commands_options_and_values(folder: Path) -> None:
    shown = in_zsh(folder, "wal2lake sto\\t -m ")
    assert "wal2lake stop" in shown
    assert all(mode in shown for mode in ("smart", "fast", "immediate"))
    shown = in_zsh(folder, "wal2lake stop -D ")
    assert "stop -D a\\ node" in shown
