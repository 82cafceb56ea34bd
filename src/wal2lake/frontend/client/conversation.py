"""Messages to and from one client: the transport and the protocol's reader, together.

In: messages to send. Out: packets and frames as they come. A client that closes, or says
Terminate where nothing else is expected, is a TransportClosed like any other disappearance.
"""

from __future__ import annotations

from collections.abc import Callable

from wal2lake.frontend.client.transport import Transport, TransportClosed
from wal2lake.wire.frontback import (
    BackendMessage,
    Frame,
    FrontendReader,
    StartupPacket,
    write_backend,
)


class Conversation:
    """One client's connection."""

    __slots__ = ("_reader", "codec", "transport")

    def __init__(self, transport: Transport, *, max_message_bytes: int) -> None:
        self.transport = transport
        self._reader = FrontendReader(max_message_bytes=max_message_bytes)
        self.codec: Callable[[], str] = lambda: "utf-8"
        """Gives Python's codec for the text that goes out: it changes with each SET."""

    def send(self, message: BackendMessage) -> None:
        """Queue a message; raises TransportClosed."""
        self.transport.write(write_backend(message, encoding=self.codec()))

    def send_raw(self, data: bytes) -> None:
        """Queue bytes that are no message (the answer to SSLRequest)."""
        self.transport.write(data)

    @property
    def buffered(self) -> int:
        """Bytes that came and were not asked for yet."""
        return self._reader.buffered

    @property
    def ends_here(self) -> bool:
        """Sync is what comes next, and has come already."""
        return self._reader.next_kind == b"S"

    def receive_first(self) -> bytes:
        """What comes first, to be looked at and fed; raises TransportClosed."""
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
        """What somebody else has read of this client."""
        self._reader.feed(data)

    def _receive(self, timeout_s: float | None) -> None:
        data = self.transport.read(timeout_s)
        if not data:
            raise TransportClosed("end of stream")
        self._reader.feed(data)
