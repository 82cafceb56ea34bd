"""The programs of the image and of the compose file, with a node that only notes its arguments."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.fakes.deployed import DEPLOY

from wal2lake.launch.directory.webstatus import WebStatus, write_web_status

WAL2LAKE = """#!/bin/sh
echo "$@" >>"$CALLS"
env >>"$CALLS.env"
if [ "$1" = init ]; then
    mkdir -p "$3" && touch "$3/catalog.sqlite" "$3/wal2lake.toml"
    if [ "${6:-}" = --pwfile ]; then cp "$7" "$CALLS.password"; fi
fi
"""


class Volume:
    """A folder that is mounted, and the entry point with it."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "volume" / "node"
        self.directory.parent.mkdir()
        self.settings = folder / "outside.toml"
        self.calls = folder / "calls"
        self._programs = folder / "bin"
        self._programs.mkdir()
        program = self._programs / "wal2lake"
        program.write_text(WAL2LAKE)
        program.chmod(0o755)

    def enter(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [DEPLOY / "docker" / "entrypoint", *words],
            env={
                "PATH": os.pathsep.join([str(self._programs), os.environ["PATH"]]),
                "CALLS": str(self.calls),
                "WAL2LAKE_DIRECTORY": str(self.directory),
                "WAL2LAKE_SETTINGS_FILE": str(self.settings),
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


def test_an_empty_volume_gets_a_node_once(volume):
    done = volume.enter("start", "-c", "spark.master=local[1]")
    assert done.returncode == 0, done.stderr
    assert volume.called() == [
        f"init -D {volume.directory}.new -U lake",
        f"start -D {volume.directory} -c spark.master=local[1]",
    ]
    assert f'the password is in "{volume.directory}/passfile"' in done.stderr
    assert volume.enter("start").stderr == ""
    assert volume.called()[2:] == [f"start -D {volume.directory}"]


def test_a_password_is_given_to_init_and_to_nobody_else(volume):
    secret = 'it\'s "$HOME" \\n'
    done = volume.enter("start", WAL2LAKE_INIT_PASSWORD=secret, WAL2LAKE_INIT_USER="me")
    assert done.returncode == 0, done.stderr
    first, last = volume.called()
    assert first.startswith(f"init -D {volume.directory}.new -U me --pwfile /")
    assert Path(f"{volume.calls}.password").read_text() == secret + "\n"
    assert not Path(first.split()[-1]).exists()
    started = Path(f"{volume.calls}.env").read_text().rpartition("CALLS=")[2]
    assert secret not in last + started and secret not in done.stderr


def test_a_file_with_a_password_is_passed_on(volume, tmp_path):
    (tmp_path / "secret").write_text("x\n")
    volume.enter("start", WAL2LAKE_INIT_PASSWORD_FILE=str(tmp_path / "secret"))
    assert volume.called()[0].endswith(f"--pwfile {tmp_path}/secret")


def test_two_passwords_are_refused(volume):
    done = volume.enter(
        "start", WAL2LAKE_INIT_PASSWORD="a", WAL2LAKE_INIT_PASSWORD_FILE="/b"
    )
    assert done.returncode == 1 and volume.called() == []
    assert "both WAL2LAKE_INIT_PASSWORD and WAL2LAKE_INIT_PASSWORD_FILE" in done.stderr
    assert "HINT:  Set one of them." in done.stderr


def test_what_a_killed_init_has_left_goes(volume):
    left = volume.directory.with_name("node.new")
    left.mkdir()
    (left / "catalog.sqlite").touch()
    assert volume.enter("start").returncode == 0
    assert not left.exists() and (volume.directory / "catalog.sqlite").exists()


def test_a_folder_with_other_files_is_left_alone(volume):
    volume.directory.mkdir()
    (volume.directory / "lost+found").mkdir()
    done = volume.enter("start")
    assert done.returncode == 1 and volume.called() == []
    assert f'"{volume.directory}" has no node, but it is not empty' in done.stderr
    assert f'Mount the volume at "{volume.directory.parent}"' in done.stderr
    assert (volume.directory / "lost+found").is_dir()


def test_settings_from_outside_are_the_nodes(volume):
    volume.settings.write_text("[node]\n")
    link = volume.directory / "wal2lake.toml"
    for _ in range(2):
        assert volume.enter("start").returncode == 0
        assert link.readlink() == volume.settings
    # A new version of the file is seen: a ConfigMap, or another mount.
    volume.settings.unlink()
    done = volume.enter("start")
    assert done.returncode == 1
    assert f'settings are in "{volume.settings}", which is not there' in done.stderr
    assert f'Mount the file, or remove "{link}"' in done.stderr


def test_another_command_is_run_as_it_is(volume):
    done = volume.enter("sh", "-c", "echo here; exit 7")
    assert (done.returncode, done.stdout) == (7, "here\n")
    assert not volume.directory.exists()
    volume.enter("wal2lake", "--version")
    assert volume.called() == ["--version"]


# ---- the health check -----------------------------------------------------------------


class Web:
    """A node's web process as far as the check sees it."""

    def __init__(self, folder: Path) -> None:
        self.live = 200
        self.ready: tuple[int, object] = (200, {"status": "ready", "reasons": []})
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = web.ready
                if self.path == "/health/live":
                    status, body = web.live, {"status": "live"}
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        port = self.server.server_address[1]
        (folder / "run").mkdir()
        urls = ("https://127.0.0.1:1/", f"http://127.0.0.1:{port}/")
        write_web_status(folder / "run", WebStatus(1, urls))

    def broken(self, *kinds: str) -> None:
        reasons = [{"kind": kind, "message": "..."} for kind in kinds]
        self.ready = (503, {"status": "not ready", "reasons": reasons})


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    made = Web(tmp_path)
    monkeypatch.setenv("WAL2LAKE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def check(*arguments: str) -> int:
    program = runpy.run_path(str(DEPLOY / "docker" / "healthcheck"))
    result = program["main"](list(arguments))
    assert isinstance(result, int)
    return result


def test_a_node_that_is_well_is_healthy(web):
    assert check("live") == check("serving") == 0


def test_an_error_of_a_subscription_is_no_reason_to_restart_or_to_turn_away(web):
    web.broken("errored", "paused")
    assert check("live") == check("serving") == 0


def test_a_node_that_does_not_accept_clients_lives_but_does_not_serve(web, capsys):
    for kinds in (("node",), ("node", "errored"), ("unreadable",)):
        web.broken(*kinds)
        assert (check("live"), check("serving")) == (0, 1)
    assert '"unreadable"' in capsys.readouterr().out


def test_no_answer_is_not_healthy(web, tmp_path, capsys):
    web.live = 500
    web.ready = (503, ["nonsense"])
    assert (check("live"), check("serving")) == (1, 1)
    write_web_status(tmp_path / "run", WebStatus(1, ("https://127.0.0.1:1/",)))
    assert check("live") == 1
    assert "does not listen on 127.0.0.1" in capsys.readouterr().err
    write_web_status(tmp_path / "run", WebStatus(1, ("http://127.0.0.1:1/",)))
    assert check("live") == check("serving") == 1
    assert check() == check("dead") == 1


# ---- compose --------------------------------------------------------------------------


def test_the_certificate_is_made_once_and_its_key_is_closed(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    script = ["sh", str(DEPLOY / "compose" / "certificate.sh"), str(tmp_path)]
    seen = []
    for _ in range(2):
        words = [*script, str(os.getegid())]
        subprocess.run(words, check=True, capture_output=True, timeout=30)
        seen.append({p.name: p.read_bytes() for p in tmp_path.iterdir()})
    assert seen[0] == seen[1]
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"server.crt": 0o644, "server.key": 0o640}
    shown = subprocess.run(
        [
            "openssl",
            "x509",
            "-in",
            tmp_path / "server.crt",
            "-noout",
            "-ext",
            "subjectAltName",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "DNS:wal2lake, DNS:localhost" in shown.stdout
