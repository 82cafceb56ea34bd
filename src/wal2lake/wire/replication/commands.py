"""The grammar of replication commands; each ``_write_x`` stands above its ``_read_x``.

In: one command's text. Out: a frozen dataclass; or SqlSyntaxError ("syntax error" without details,
as from a walsender), or an error about the options. ``read_command(write_command(c))`` is ``c``.
Commands are executed elsewhere; BASE_BACKUP and UPLOAD_MANIFEST are parsed so that they can be
refused by name.

Source: src/backend/replication/repl_gram.y (PostgreSQL 18); manual 54.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from wal2lake.errors import SqlSyntaxError
from wal2lake.model import Lsn
from wal2lake.wire.replication.scanner import (
    KEYWORDS,
    ReplicationToken,
    ReplicationTokenKind,
    is_replication_command,
    quoted_ident,
    quoted_string,
    tokens,
)
from wal2lake.wire.replication.slotoptions import (
    CreateOptions,
    Option,
    SnapshotAction,
    read_alter_options,
    read_create_options,
)

_LEGACY_OPTIONS: Final = {
    "EXPORT_SNAPSHOT": Option("snapshot", "export"),
    "NOEXPORT_SNAPSHOT": Option("snapshot", "nothing"),
    "USE_SNAPSHOT": Option("snapshot", "use"),
    "RESERVE_WAL": Option("reserve_wal"),
    "TWO_PHASE": Option("two_phase"),
}
"""Options in the syntax before PostgreSQL 15."""

_OPTION_KEYWORDS: Final = KEYWORDS - {"READ_REPLICATION_SLOT"}
"""Keywords that may be an option's name; PostgreSQL's grammar omits one."""

_INT32: Final = 1 << 31
_NO_OPTIONS: Final = CreateOptions()


class _Parser:
    """A cursor over the tokens of one command."""

    def __init__(self, scanned: Iterator[ReplicationToken]) -> None:
        self._tokens = scanned
        self.token = next(scanned)

    def next(self) -> ReplicationToken:
        """Return the current token and step over it."""
        token = self.token
        if token.kind is not ReplicationTokenKind.END:
            self.token = next(self._tokens)
        return token

    def expect(self, kind: ReplicationTokenKind) -> ReplicationToken:
        if self.token.kind is not kind:
            raise syntax_error()
        return self.next()

    def skip(self, word: str) -> bool:
        """Step over this keyword or character if it is the current token."""
        if (
            self.token.kind
            in (ReplicationTokenKind.KEYWORD, ReplicationTokenKind.CHARACTER)
            and self.token.text == word
        ):
            self.next()
            return True
        return False

    def require(self, word: str) -> None:
        if not self.skip(word):
            raise syntax_error()

    def name(self) -> str:
        return self.expect(ReplicationTokenKind.IDENT).text

    def parameter(self) -> str:
        """Read one or more names with dots between them."""
        parts = [self.name()]
        while self.skip("."):
            parts.append(self.name())
        return ".".join(parts)

    def timeline(self) -> int:
        # Checked before the next token is read, as bison does.
        if self.token.kind is not ReplicationTokenKind.NUMBER:
            raise syntax_error()
        if not self.token.number:
            raise SqlSyntaxError(f"invalid timeline {self.token.number}")
        return self.next().number

    def options(self) -> tuple[Option, ...]:
        """Read the options after an opening parenthesis, and the closing one."""
        options = [self._option()]
        while self.skip(","):
            options.append(self._option())
        self.require(")")
        return tuple(options)

    def _option(self) -> Option:
        if (
            self.token.kind is ReplicationTokenKind.KEYWORD
            and self.token.text in _OPTION_KEYWORDS
        ):
            name = self.next().text.lower()
        else:
            name = self.name()
        if self.token.kind in (ReplicationTokenKind.IDENT, ReplicationTokenKind.STRING):
            return Option(name, self.next().text)
        if self.token.kind is ReplicationTokenKind.NUMBER:
            number = self.next().number
            return Option(name, number - 2 * _INT32 if number >= _INT32 else number)
        return Option(name)

    def plugin_options(self) -> tuple[Option, ...]:
        """Read options whose names are identifiers and whose values are strings."""
        options = []
        while True:
            name = self.name()
            value = (
                self.next().text
                if self.token.kind is ReplicationTokenKind.STRING
                else None
            )
            options.append(Option(name, value))
            if not self.skip(","):
                break
        self.require(")")
        return tuple(options)


def syntax_error() -> SqlSyntaxError:
    """Build the error; a walsender's has no details either."""
    return SqlSyntaxError("syntax error")


def _write_options(options: tuple[Option, ...]) -> str:
    if not options:
        return ""
    return f" ({', '.join(_write_option(option) for option in options)})"


def _write_option(option: Option) -> str:
    # Names in lower case are not keywords. Quoting them is possible but not usual.
    plain = option.name.isascii() and option.name.isidentifier()
    name = option.name if plain and option.name.islower() else quoted_ident(option.name)
    if option.value is None:
        return name
    if isinstance(option.value, int):
        return f"{name} {option.value % (2 * _INT32)}"
    return f"{name} {quoted_string(option.value)}"


@dataclass(frozen=True, slots=True)
class IdentifySystem:
    """IDENTIFY_SYSTEM."""


def _write_identify_system(_: IdentifySystem) -> str:
    return "IDENTIFY_SYSTEM"


def _read_identify_system(_: _Parser) -> IdentifySystem:
    return IdentifySystem()


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW of a configuration parameter; ``all`` is a name, too."""

    name: str


def _write_show(command: Show) -> str:
    parts = command.name.split(".")
    return f"SHOW {'.'.join(quoted_ident(part) for part in parts)}"


def _read_show(parser: _Parser) -> Show:
    return Show(parser.parameter())


@dataclass(frozen=True, slots=True)
class ReadReplicationSlot:
    """READ_REPLICATION_SLOT, for physical slots."""

    slot: str


def _write_read_replication_slot(command: ReadReplicationSlot) -> str:
    parts = command.slot.split(".")
    return f"READ_REPLICATION_SLOT {'.'.join(quoted_ident(part) for part in parts)}"


def _read_read_replication_slot(parser: _Parser) -> ReadReplicationSlot:
    return ReadReplicationSlot(parser.parameter())


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """TIMELINE_HISTORY."""

    timeline: int


def _write_timeline_history(command: TimelineHistory) -> str:
    return f"TIMELINE_HISTORY {command.timeline}"


def _read_timeline_history(parser: _Parser) -> TimelineHistory:
    return TimelineHistory(parser.timeline())


@dataclass(frozen=True, slots=True)
class BaseBackup:
    """BASE_BACKUP; its options are not checked."""

    options: tuple[Option, ...] = ()


def _write_base_backup(command: BaseBackup) -> str:
    return f"BASE_BACKUP{_write_options(command.options)}"


def _read_base_backup(parser: _Parser) -> BaseBackup:
    return BaseBackup(parser.options() if parser.skip("(") else ())


@dataclass(frozen=True, slots=True)
class UploadManifest:
    """UPLOAD_MANIFEST."""


def _write_upload_manifest(_: UploadManifest) -> str:
    return "UPLOAD_MANIFEST"


def _read_upload_manifest(_: _Parser) -> UploadManifest:
    return UploadManifest()


@dataclass(frozen=True, slots=True)
class CreateReplicationSlot:
    """CREATE_REPLICATION_SLOT."""

    slot: str
    """Not validated yet."""
    plugin: str | None
    """None: the slot is physical."""
    temporary: bool = False
    options: CreateOptions = _NO_OPTIONS


def _write_create_replication_slot(command: CreateReplicationSlot) -> str:
    options, written = command.options, []
    if options.two_phase:
        written.append("TWO_PHASE")
    if options.failover:
        written.append("FAILOVER")
    if options.reserve_wal:
        written.append("RESERVE_WAL")
    if command.plugin is not None and options.snapshot is not SnapshotAction.EXPORT:
        written.append(f"SNAPSHOT '{options.snapshot.value}'")
    words = ["CREATE_REPLICATION_SLOT", quoted_ident(command.slot)]
    if command.temporary:
        words.append("TEMPORARY")
    if command.plugin is None:
        words.append("PHYSICAL")
    else:
        words += ["LOGICAL", quoted_ident(command.plugin)]
    if written:
        words.append(f"({', '.join(written)})")
    return " ".join(words)


def _read_create_replication_slot(
    parser: _Parser,
) -> Callable[[], CreateReplicationSlot]:
    slot = parser.name()
    temporary = parser.skip("TEMPORARY")
    plugin = None
    if not parser.skip("PHYSICAL"):
        parser.require("LOGICAL")
        plugin = parser.name()
    options: tuple[Option, ...]
    if parser.skip("("):
        options = parser.options()
    else:
        legacy = []
        while (
            parser.token.kind is ReplicationTokenKind.KEYWORD
            and parser.token.text in _LEGACY_OPTIONS
        ):
            legacy.append(_LEGACY_OPTIONS[parser.next().text])
        options = tuple(legacy)
    return lambda: CreateReplicationSlot(
        slot,
        plugin,
        temporary,
        read_create_options(options, logical=plugin is not None),
    )


@dataclass(frozen=True, slots=True)
class AlterReplicationSlot:
    """ALTER_REPLICATION_SLOT. None leaves an option unchanged; at least one is not None."""

    slot: str
    failover: bool | None = None
    two_phase: bool | None = None


def _write_alter_replication_slot(command: AlterReplicationSlot) -> str:
    options = [
        f"{name} {'true' if value else 'false'}"
        for name, value in (
            ("FAILOVER", command.failover),
            ("TWO_PHASE", command.two_phase),
        )
        if value is not None
    ]
    slot = quoted_ident(command.slot)
    return f"ALTER_REPLICATION_SLOT {slot} ({', '.join(options)})"


def _read_alter_replication_slot(parser: _Parser) -> Callable[[], AlterReplicationSlot]:
    slot = parser.name()
    parser.require("(")
    options = parser.options()
    return lambda: AlterReplicationSlot(slot, *read_alter_options(options))


@dataclass(frozen=True, slots=True)
class DropReplicationSlot:
    """DROP_REPLICATION_SLOT."""

    slot: str
    wait: bool = False
    """Wait while the slot is in use."""


def _write_drop_replication_slot(command: DropReplicationSlot) -> str:
    wait = " WAIT" if command.wait else ""
    return f"DROP_REPLICATION_SLOT {quoted_ident(command.slot)}{wait}"


def _read_drop_replication_slot(parser: _Parser) -> DropReplicationSlot:
    return DropReplicationSlot(parser.name(), parser.skip("WAIT"))


@dataclass(frozen=True, slots=True)
class StartPhysical:
    """START_REPLICATION of WAL."""

    slot: str | None
    start: Lsn
    timeline: int | None = None


def _write_start_physical(command: StartPhysical) -> str:
    words = ["START_REPLICATION"]
    if command.slot is not None:
        words += ["SLOT", quoted_ident(command.slot)]
    words += ["PHYSICAL", str(command.start)]
    if command.timeline is not None:
        words += ["TIMELINE", str(command.timeline)]
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class StartLogical:
    """START_REPLICATION ... LOGICAL."""

    slot: str
    start: Lsn
    """0: the slot's position."""
    options: tuple[Option, ...] = ()
    """Options for the output plugin."""


def _write_start_logical(command: StartLogical) -> str:
    slot = quoted_ident(command.slot)
    options = _write_options(command.options)
    return f"START_REPLICATION SLOT {slot} LOGICAL {command.start}{options}"


def _read_start_replication(parser: _Parser) -> StartPhysical | StartLogical:
    slot = parser.name() if parser.skip("SLOT") else None
    if slot is not None and parser.skip("LOGICAL"):
        start = Lsn(parser.expect(ReplicationTokenKind.LSN).number)
        options = parser.plugin_options() if parser.skip("(") else ()
        return StartLogical(slot, start, options)
    parser.skip("PHYSICAL")
    start = Lsn(parser.expect(ReplicationTokenKind.LSN).number)
    return StartPhysical(
        slot, start, parser.timeline() if parser.skip("TIMELINE") else None
    )


Command: TypeAlias = (
    IdentifySystem
    | Show
    | ReadReplicationSlot
    | TimelineHistory
    | BaseBackup
    | UploadManifest
    | CreateReplicationSlot
    | AlterReplicationSlot
    | DropReplicationSlot
    | StartPhysical
    | StartLogical
)

_READERS: Final[dict[str, Callable[[_Parser], Command | Callable[[], Command]]]] = {
    "IDENTIFY_SYSTEM": _read_identify_system,
    "SHOW": _read_show,
    "READ_REPLICATION_SLOT": _read_read_replication_slot,
    "TIMELINE_HISTORY": _read_timeline_history,
    "BASE_BACKUP": _read_base_backup,
    "UPLOAD_MANIFEST": _read_upload_manifest,
    "CREATE_REPLICATION_SLOT": _read_create_replication_slot,
    "ALTER_REPLICATION_SLOT": _read_alter_replication_slot,
    "DROP_REPLICATION_SLOT": _read_drop_replication_slot,
    "START_REPLICATION": _read_start_replication,
}
"""Some readers return a function, which checks the options after the whole text has parsed."""

_WRITERS: Final[dict[type[Any], Callable[[Any], str]]] = {
    IdentifySystem: _write_identify_system,
    Show: _write_show,
    ReadReplicationSlot: _write_read_replication_slot,
    TimelineHistory: _write_timeline_history,
    BaseBackup: _write_base_backup,
    UploadManifest: _write_upload_manifest,
    CreateReplicationSlot: _write_create_replication_slot,
    AlterReplicationSlot: _write_alter_replication_slot,
    DropReplicationSlot: _write_drop_replication_slot,
    StartPhysical: _write_start_physical,
    StartLogical: _write_start_logical,
}


def write_command(command: Command) -> str:
    """Write the command's text, with options in the syntax since PostgreSQL 15."""
    return _WRITERS[type(command)](command)


def read_command(text: str) -> Command:
    """Parse a text for which ``is_replication_command`` is true; raises UsageError."""
    parser = _Parser(tokens(text))
    keyword = parser.expect(ReplicationTokenKind.KEYWORD).text
    if keyword not in _READERS:
        raise syntax_error()
    command = _READERS[keyword](parser)
    parser.skip(";")
    if parser.token.kind is not ReplicationTokenKind.END:
        raise syntax_error()
    return command() if callable(command) else command


__all__ = [
    "AlterReplicationSlot",
    "BaseBackup",
    "Command",
    "CreateReplicationSlot",
    "DropReplicationSlot",
    "IdentifySystem",
    "ReadReplicationSlot",
    "Show",
    "StartLogical",
    "StartPhysical",
    "TimelineHistory",
    "UploadManifest",
    "is_replication_command",
    "read_command",
    "write_command",
]
