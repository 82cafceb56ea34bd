"""Applies the settings about TLS and pg_hba.conf to connections.

In: settings, at the start and with each SIGHUP. Out: what holds now. A file that cannot be read
keeps the node from starting; at a SIGHUP what held before goes on, and the log says why.

Source: src/backend/postmaster/postmaster.c (process_pm_reload_request).
"""

from __future__ import annotations

from typing import Any

from wal2lake.door.auth import AuthMethod
from wal2lake.door.encryption import Encryption, make_encryption
from wal2lake.door.hba import AccessRules, everybody, parse_rules
from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.settings import Settings


class Entrance:
    """Read by many threads; ``rules`` and ``tls`` are replaced, never changed."""

    def __init__(self, rules: AccessRules, tls: Encryption | None = None) -> None:
        """``tls`` None: not offered."""
        self.rules = rules
        self.tls = tls

    @classmethod
    def of(cls, settings: Settings) -> Entrance:
        """Raises ConfigurationError."""
        return cls(_rules(settings), make_encryption(settings))

    def reload(self, settings: Settings, log: Any) -> None:
        """Apply the settings to connections from now on."""
        try:
            self.rules = _rules(settings)
        except ConfigurationError as error:
            log.error('the file of "hba_file" was not reloaded', error=error)
        try:
            self.tls = make_encryption(settings)
        except ConfigurationError as error:
            log.error("SSL configuration was not reloaded", error=error)


def _rules(settings: Settings) -> AccessRules:
    if not settings.node.hba_file:
        return everybody(AuthMethod(settings.node.authentication))
    path = settings.directory / settings.node.hba_file
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f'could not open file "{path}": {reason_of(error)}',
            hint='It is that of "hba_file" of [node].',
        ) from error
    return parse_rules(text, str(path))
