"""TLS in front of a server that has none: certificates of both sides, checked as libpq asks.

Comes in: the address of a PostgreSQL, a folder for keys. Goes out: a port that answers SSLRequest,
wants a client certificate of the same authority, and passes the bytes on. ``names`` are the
certificates' common names, one for each connection that was let in.

One thread a connection: OpenSSL's connections are not for two at once.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType

_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_CHUNK = 1 << 16


class Authority:
    """A certificate authority of a test's own, by openssl."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._run("req", "-x509", *self._key("ca"), "-out", "ca.crt", "-subj", "/CN=ca")

    def issue(self, name: str, common_name: str) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its key."""
        self._run(
            "req",
            *self._key(name),
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={common_name}",
        )
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1")
        self._run(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            *signed,
            "-extfile",
            "names",
            "-out",
            f"{name}.crt",
        )
        key = self.folder / f"{name}.key"
        key.chmod(0o600)
        return self.folder / f"{name}.crt", key

    def _key(self, name: str) -> tuple[str, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        return (*curve, "-keyout", f"{name}.key")

    def _run(self, *arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments],
            cwd=self.folder,
            check=True,
            capture_output=True,
            timeout=30,
        )


class TlsFront:
    """See the header. A context manager."""

    def __init__(self, port: int, authority: Authority) -> None:
        certificate, key = authority.issue("server", "server")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.load_verify_locations(authority.certificate)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.names: list[str] = []
        threading.Thread(target=self._accept, name="tls", daemon=True).start()

    def __enter__(self) -> TlsFront:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(
                    target=self._serve, args=(client,), name="tls", daemon=True
                ).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
                # GSSENCRequest, or nothing at all.
                if client.send(b"N") and not client.recv(1, socket.MSG_PEEK):
                    return
            client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as inside:
                subject = dict(pair[0] for pair in inside.getpeercert()["subject"])
                self.names.append(subject["commonName"])
                with socket.create_connection(("127.0.0.1", self._target)) as server:
                    _pass_on(inside, server)


def _pass_on(inside: ssl.SSLSocket, server: socket.socket) -> None:
    while True:
        ready = [inside] if inside.pending() else []
        readable = ready or select.select([inside, server], [], [])[0]
        for source in readable:
            data = source.recv(_CHUNK)
            if not data:
                return
            (server if source is inside else inside).sendall(data)
