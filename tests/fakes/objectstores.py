"""Object stores for tests: real servers as processes of their own, one for each protocol.

S3 is moto's server, Azure is Azurite, which npm has. Google's is ``gcsserver``, since the servers
that can be had ignore conditions in the XML protocol, in which obstore writes.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from tests.fakes.gcsserver import ACCOUNT, TOKENS, GcsServer

from wal2lake.lake.store import StoreOptions, clients
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

BUCKET = "lake"

_FETCH = Path(__file__).parent.parent.parent / "tools" / "fetch-azurite"

_AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"
    "/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Account and key of every Azurite, from its documentation."""


GCS_TOKEN = "the-token-of-the-store"
"""What Google's server wants."""


@dataclass(frozen=True)
class Server:
    """A running object store with an empty bucket."""

    url: str
    """URL of the bucket, as for a warehouse."""
    port: int
    config: tuple[tuple[str, str], ...]
    path: str = ""
    """Path at the end of the server's URL."""
    anonymous: bool = False
    scheme: str = "http"

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"{self.scheme}://127.0.0.1:{self.port}{self.path}"

    def options(self, port: int | None = None, **more: float) -> StoreOptions:
        """Return options for this server, or for a proxy in front of it. Attempts are quick."""
        url = f"http://127.0.0.1:{port or self.port}{self.path}"
        quick: dict[str, Any] = {
            "pause_seconds": 0.01,
            "longest_pause_seconds": 0.05,
            "anonymous": self.anonymous,
            **more,
        }
        return StoreOptions((*self.config, ("endpoint", url)), **quick)


@contextmanager
def s3_server() -> Iterator[Server]:
    """Run moto's server."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port):
        _request("PUT", f"http://127.0.0.1:{port}/{BUCKET}")
        config = (
            ("access_key_id", "key"),
            ("secret_access_key", "the-secret-of-the-store"),
            ("region", "us-east-1"),
        )
        yield Server(f"s3://{BUCKET}", port, config)


@contextmanager
def gcs_server() -> Iterator[Server]:
    """Run ``gcsserver``."""
    with GcsServer(BUCKET) as server:
        yield Server(f"gs://{BUCKET}", server.port, (), anonymous=True)


@contextmanager
def closed_gcs_server() -> Iterator[Server]:
    """Run ``gcsserver`` for a node: it wants a token, which a command prints."""
    port = _free_port()
    command = [sys.executable, "-m", "tests.fakes.gcsserver", BUCKET, str(port)]
    with (
        _running(command, port, {"TOKEN": GCS_TOKEN}),
        tempfile.TemporaryDirectory() as directory,
    ):
        printed = Path(directory) / "printed"
        # It ends so soon that each part of the node runs the command again.
        printed.write_text(json.dumps({"access_token": GCS_TOKEN, "expires_in": 20}))
        config = (("credentials_command", f"cat {printed}"),)
        yield Server(f"gs://{BUCKET}", port, config)


@contextmanager
def keyed_gcs_server() -> Iterator[Server]:
    """Run ``gcsserver`` for a cluster: it knows the node by the key of a service account."""
    with closed_gcs_server() as server, tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "key.json"
        file.write_text(gcs_account(server.endpoint))
        yield replace(server, config=(("credentials_file", str(file)),))


def gcs_account(endpoint: str) -> str:
    """Return the key file of the service account that ``gcsserver`` knows, as Google gives it."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "private_key_id": "1",
            "private_key": key.decode(),
            "client_id": "1",
            "client_email": ACCOUNT,
            "token_uri": f"{endpoint}{TOKENS}",
            # The node's own client reads this.
            "gcs_base_url": endpoint,
        }
    )


@contextmanager
def azure_server(pair: tuple[Path, Path] | None = None) -> Iterator[Server]:
    """Run Azurite, which is fetched once. With a certificate and its key it speaks TLS, and takes
    tokens, too."""
    program = _azurite()
    port = _free_port()
    command = [
        shutil.which("node") or "node",
        str(program),
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--silent",
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
    ]
    trusted = None
    if pair is not None:
        command += ["--cert", str(pair[0]), "--key", str(pair[1]), "--oauth", "basic"]
        trusted = ssl.create_default_context()
        trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
    scheme = "http" if pair is None else "https"
    with _running(command, port):
        path = f"/{_AZURE_ACCOUNT}"
        date = email.utils.formatdate(usegmt=True)
        version = "2021-08-06"
        signed = (
            f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n"
            f"{path}{path}/{BUCKET}\nrestype:container"
        )
        key = base64.b64decode(AZURE_KEY)
        signature = base64.b64encode(
            hmac.new(key, signed.encode(), hashlib.sha256).digest()
        ).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {_AZURE_ACCOUNT}:{signature}",
            "Content-Length": "0",
        }
        container = f"{scheme}://127.0.0.1:{port}{path}/{BUCKET}?restype=container"

        def is_made() -> bool:
            # A busy machine resets Azurite's first connections.
            try:
                _request("PUT", container, headers, trusted)
            except ConnectionError:
                return False
            return True

        wait_until(is_made, timeout_seconds=60, describe="the container is made")
        config = (("account_key", AZURE_KEY),)
        host = f"{_AZURE_ACCOUNT}.dfs.core.windows.net"
        yield Server(f"abfss://{BUCKET}@{host}", port, config, path, scheme=scheme)


def azure_signature(permissions: str) -> str:
    """Return a shared access signature of an hour for all of Azurite's containers."""
    version, end = "2021-08-06", datetime.now(UTC) + timedelta(hours=1)
    until = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = [_AZURE_ACCOUNT, permissions, "b", "sco", "", until, "", "", version, ""]
    signed = "".join(f"{field}\n" for field in fields)
    key = base64.b64decode(AZURE_KEY)
    signature = hmac.new(key, signed.encode(), hashlib.sha256).digest()
    return urllib.parse.urlencode(
        {
            "sv": version,
            "ss": "b",
            "srt": "sco",
            "sp": permissions,
            "se": until,
            "sig": base64.b64encode(signature).decode(),
        }
    )


@cache
def _azurite() -> Path:
    """Return Azurite's program; without npm or a network the test is skipped, with CI it fails."""
    directory = Path.home() / ".cache" / "wal2lake" / "azurite"
    done = subprocess.run(
        [_FETCH, directory], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        reason = f"no Azurite, Azure is not tested: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(done.stdout.strip().splitlines()[-1])


@contextmanager
def _running(
    command: list[str], port: int, variables: Mapping[str, str] | None = None
) -> Iterator[None]:
    process = subprocess.Popen(
        tied(*command),
        cwd=Path(__file__).parents[2],
        env={**os.environ, **(variables or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(
            lambda: _listens(port), timeout_seconds=60, describe="the store listens"
        )
        yield
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _request(
    method: str,
    url: str,
    headers: dict[str, str] | None = None,
    trusted: ssl.SSLContext | None = None,
) -> None:
    request = urllib.request.Request(url, method=method, headers=headers or {})
    with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
        assert answer.status in (200, 201), answer.status


@contextmanager
def environment_of(
    server: Server, patch: pytest.MonkeyPatch, port: int | None = None
) -> Iterator[None]:
    """Describe an S3 server, or a proxy in front of it, in the environment, as for a cloud's own
    programs."""
    with patch.context() as here:
        for name, value in server.options(port).config:
            here.setenv(f"AWS_{name.upper()}", value)
        clients._bucket.cache_clear()
        yield
    clients._bucket.cache_clear()
