"""TLS in front of a server that has none: certificates of both sides, checked as libpq asks.

Comes in: the address of a PostgreSQL, a folder for keys. Goes out: a port that answers SSLRequest,
wants a client certificate of the same authority, and passes the bytes on. ``names`` are the
certificates' common names, one for each connection that was let in.

One thread a connection: OpenSSL's connections are not for two at once.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

from tests.fakes.front import Front, pass_on, readable

_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


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


class TlsFront(Front):
    """See the header. A context manager."""

    def __init__(self, port: int, authority: Authority) -> None:
        certificate, key = authority.issue("server", "server")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.load_verify_locations(authority.certificate)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self.names: list[str] = []
        super().__init__(port)

    def _serve(self, client: socket.socket) -> None:
        while client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
            # GSSENCRequest, or nothing at all.
            if client.send(b"N") and not client.recv(1, socket.MSG_PEEK):
                return
        client.sendall(b"S")
        with self._context.wrap_socket(client, server_side=True) as inside:
            certificate = inside.getpeercert()
            assert certificate is not None
            # Relative names of one pair each.
            subject: Any = certificate["subject"]
            self.names.append(dict(pair for (pair,) in subject)["commonName"])
            with self._reach() as server:
                while all(
                    pass_on(source, server if source is inside else inside)
                    for source in readable(inside, server)
                ):
                    pass
