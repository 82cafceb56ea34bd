"""Applies the settings about TLS and pg_hba.conf to connections.

Takes settings, at the start and with each SIGHUP; gives the rules in force. A file that cannot be
read keeps the node from starting. At a SIGHUP the old rules stay in force and the error is logged.

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
    """The rules in force, read by many threads; ``rules`` and ``tls`` are replaced, not changed."""

    def __init__(self, rules: AccessRules, tls: Encryption | None = None) -> None:
        """``tls``: None if TLS is not offered."""
        self.rules = rules
        self.tls = tls

    @classmethod
    def of(cls, settings: Settings) -> Entrance:
        """Read the files of the settings; raises ConfigurationError."""
        return cls(_rules(settings), make_encryption(settings))

    def reload(self, settings: Settings, log: Any) -> None:
        """Apply the settings to later connections."""
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
            hint='The setting "hba_file" of [node] names it.',
        ) from error
    return parse_rules(text, str(path))
