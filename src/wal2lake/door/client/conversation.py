"""Sends messages to one client and reads its packets and frames.

It joins the transport and the protocol's reader. Comes in: messages to send. Goes out: packets and
frames in their order. If the client closes the connection, TransportClosed is raised.
"""

from __future__ import annotations

from collections.abc import Callable

from wal2lake.door.client.transport import Transport, TransportClosed
from wal2lake.wire.frontback import (
    BackendMessage,
    Frame,
    FrontendReader,
    StartupPacket,
    write_backend,
)


class ClientConversation:
    """The messages of one client's connection."""

    __slots__ = ("_reader", "codec", "transport")

    def __init__(self, transport: Transport, *, max_message_bytes: int) -> None:
        self.transport = transport
        self._reader = FrontendReader(max_message_bytes=max_message_bytes)
        self.codec: Callable[[], str] = lambda: "utf-8"
        """Gives the name of Python's codec for text to the client, which SET may change."""

    def send(self, message: BackendMessage) -> None:
        """Queue a message; raises TransportClosed."""
        self.transport.write(write_backend(message, encoding=self.codec()))

    def send_raw(self, data: bytes) -> None:
        """Queue bytes that are not a message, such as the answer to SSLRequest."""
        self.transport.write(data)

    @property
    def buffered(self) -> int:
        """The number of bytes that have been received and not been read yet."""
        return self._reader.buffered

    @property
    def ends_here(self) -> bool:
        """Whether the next message is Sync and has been received already."""
        return self._reader.next_kind == b"S"

    def receive_first(self) -> bytes:
        """Receive the first bytes, which the caller inspects and passes to ``feed``.

        Raises TransportClosed.
        """
        data = self.transport.read()
        if not data:
            raise TransportClosed("end of stream")
        return data

    def next_packet(self) -> StartupPacket:
        """Wait for a startup packet; raises ProtocolViolation, TransportClosed."""
        while (packet := self._reader.next_packet()) is None:
            self._receive(None)
        return packet

    def next_frame(self, timeout_s: float | None = None) -> Frame:
        """Wait for a frame; raises ProtocolViolation, TransportClosed, ReadTimeout."""
        while (frame := self._reader.next_frame()) is None:
            self._receive(timeout_s)
        return frame

    def feed(self, data: bytes) -> None:
        """Add bytes that the caller has received from this client."""
        self._reader.feed(data)

    def _receive(self, timeout_s: float | None) -> None:
        data = self.transport.read(timeout_s)
        if not data:
            raise TransportClosed("end of stream")
        self._reader.feed(data)
