"""Listening on the addresses of ``[web] listen``, and retries of those that are taken.

    address                     protocol    login
    -------------------------   --------    ---------------------------------
    loopback                    HTTP        none: whoever may run programs here
    any other                   HTTPS       a role's name and password

A port that another program has does not disturb the node: it is logged once, with the remedy, and
tried again. Two nodes with the default port on one machine are the usual case; the second one's
page is there as soon as the first one has ended.

Takes settings and an application for each kind of address; gives servers that run in the process's
event loop. Called by: ``__main__``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from wal2lake.errors import ConfigurationError
from wal2lake.launch.listeners import open_listeners, reachable_address
from wal2lake.login import load_certificate, server_context
from wal2lake.observe import get_logger
from wal2lake.settings import ListenAddress, Settings, parse_web_listen
from wal2lake.web.bounds import (
    HEAD_BYTES,
    KEEP_ALIVE_SECONDS,
    MAX_REQUESTS,
    Acceptor,
    BoundedProtocol,
)

GRACE_SECONDS: Final = 1
"""Time that answers under way get when a server ends."""

RETRY_SECONDS: Final = 5.0
"""Pause before an address that could not be listened on is tried again."""


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers: the process has several servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Stop accepting, and end when the answers under way have been given."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Keep the Date header: once a second, where Uvicorn would wake ten times."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1.0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, with a bound that Uvicorn does not have."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        state = self.server_state

        def connection() -> BoundedProtocol:
            return BoundedProtocol(self.config, state, {}, loop)

        accepting: Any = Acceptor(
            sockets or [], connection, lambda: len(state.connections), self.config.ssl
        )
        self.servers = [accepting]
        self.started = True


@dataclass(frozen=True, slots=True)
class _Served:
    """An address that is listened on."""

    server: _Server
    task: asyncio.Task[None]
    urls: tuple[str, ...]
    context: ssl.SSLContext | None


@dataclass
class Listening:
    """The servers of the process; used in its event loop alone."""

    make_app: Callable[[ListenAddress], ASGIApp]
    settings: Callable[[], Settings]
    """Returns the settings in force."""
    _served: dict[ListenAddress, _Served] = field(default_factory=dict)
    _errors: dict[ListenAddress, str] = field(default_factory=dict)

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs for clients on this machine."""
        return tuple(url for served in self._served.values() for url in served.urls)

    @property
    def error(self) -> str | None:
        """Reason why an address is not listened on."""
        return next(iter(self._errors.values()), None)

    async def apply(self) -> None:
        """Listen on the addresses of the settings, and on no others; errors are logged."""
        wanted = parse_web_listen(self.settings().web.listen)
        for address in set(self._served) - set(wanted):
            await self._stop(self._served.pop(address))
        self._errors = {a: e for a, e in self._errors.items() if a in wanted}
        for address in wanted:
            if address in self._served:
                continue
            try:
                self._served[address] = await self._start(address)
            except ConfigurationError as error:
                self._report(address, error)
            else:
                self._errors.pop(address, None)
                for url in self._served[address].urls:
                    get_logger().info(f"serving metrics and the page at {url}")

    def reload_certificate(self) -> None:
        """Have later handshakes use the certificate as its files are now."""
        for served in self._served.values():
            if served.context is None:
                continue
            try:
                load_certificate(served.context, self.settings())
            except ConfigurationError as error:
                get_logger().error("SSL configuration was not reloaded", error=error)

    async def close(self) -> None:
        """End all servers; answers under way have a second."""
        await asyncio.gather(*(self._stop(s) for s in self._served.values()))
        self._served.clear()

    async def _start(self, address: ListenAddress) -> _Served:
        context = None if address.is_loopback else server_context(self.settings())
        sockets = open_listeners(address.host, address.port)
        config = uvicorn.Config(
            self.make_app(address),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_REQUESTS,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        config.load()
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
        scheme = "http" if context is None else "https"
        urls = tuple(_url(scheme, s) for s in sockets)
        return _Served(server, task, urls, context)

    def _report(self, address: ListenAddress, error: ConfigurationError) -> None:
        if self._errors.get(address) == error.message:
            return
        self._errors[address] = error.message
        get_logger().warning(
            f"metrics and the page are not served on {address}: {error.message}",
            detail=error.detail,
            hint=_remedy(error),
        )

    async def _stop(self, served: _Served) -> None:
        served.server.end()
        await served.task


def _remedy(error: ConfigurationError) -> str:
    if isinstance(error.__cause__, OSError) and error.hint and "port" in error.hint:
        return (
            'Perhaps another node or program uses this port. Set "listen" of [web] to'
            " another one, or to nothing; the address is tried again every"
            f" {RETRY_SECONDS:.0f} seconds."
        )
    return error.hint or 'Check "listen" of [web].'


def _url(scheme: str, listener: socket.socket) -> str:
    host = reachable_address(listener)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}/"


class _ToServerLog(logging.Handler):
    """Passes Uvicorn's errors on. Its warnings are about clients that send nonsense."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record in the node's form."""
        raised: Any = record.exc_info
        get_logger().error(record.getMessage().strip(), exc_info=raised)


def redirect_logs() -> None:
    """Have the libraries log through the node's log."""
    handler = _ToServerLog(logging.ERROR)
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.ERROR)
