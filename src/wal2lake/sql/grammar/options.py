"""Checks the options of a subscription and the storage parameters of a table.

Comes in: the options of a statement, in order, and the command that they belong to. Goes out:
``SubscriptionOptions`` with checked values and the names that the statement gives. Unknown names,
repeated names, values of the wrong kind and combinations that exclude each other are refused with
PostgreSQL's texts and SQLSTATEs. After those checks, a value that this node does not support yet is
refused with 0A000.

The defaults are PostgreSQL 18's. The options ``create_tables``, ``schema_changes``,
``table_format``, ``type_mappings``, ``value_policies``, ``conflict_resolution``,
``auto_refresh``, ``history`` and ``delete_mode`` are wal2lake's own, and so are ``recopy`` and
``heal`` of REFRESH PUBLICATION.

A table's storage parameters are the properties of Delta that are known to be safe,
``partition_columns``, by which the files of the table are divided, and ``cluster_by``, by which
rows are kept together.

Source: parse_subscription_options() in src/backend/commands/subscriptioncmds.c; defGetBoolean(),
defGetString(), defGetStreamingMode(); ReplicationSlotValidateName().
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.model import DeleteMode, Lsn
from wal2lake.pgtypes import (
    CONFLICT_RESOLUTION,
    TYPE_MAPPINGS,
    VALUE_POLICIES,
    ConflictResolutions,
    TypeMappings,
    ValuePolicies,
)
from wal2lake.pgtypes.encode.interval import INFINITY, interval_of
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.grammar.cursor import TokenCursor
from wal2lake.sql.grammar.lexer import TokenKind
from wal2lake.sql.grammar.statements import StatementOption, ValueKind


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class OptionSet(Enum):
    """The command whose options are checked; the value is the set of names that it accepts."""

    CREATE = _words(
        "connect enabled create_slot slot_name copy_data synchronous_commit binary"
        " streaming two_phase disable_on_error password_required run_as_owner failover"
        " origin create_tables schema_changes table_format type_mappings value_policies"
        " conflict_resolution auto_refresh history delete_mode"
    )
    SET = _words(
        "slot_name synchronous_commit binary streaming two_phase disable_on_error"
        " password_required run_as_owner failover origin create_tables schema_changes"
        " table_format type_mappings value_policies conflict_resolution auto_refresh history"
        " delete_mode"
    )
    REFRESH = frozenset(("copy_data", "recopy", "heal"))
    PUBLICATION = frozenset(("copy_data", "refresh"))
    """SET, ADD and DROP PUBLICATION. With DROP, copy_data is accepted and has no effect."""
    SKIP = frozenset(("lsn",))


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """The options of one command. Options that it does not accept have their defaults."""

    stated: frozenset[str] = frozenset()
    """The names of the options that the statement gives."""
    connect: bool = True
    enabled: bool = True
    create_slot: bool = True
    slot_name: str | None = None
    """None: slot_name = NONE if the option is given; otherwise the subscription's name is used."""
    copy_data: bool = True
    refresh: bool = True
    recopy: bool = False
    """True if every table is copied again and the copy replaces the table's rows."""
    heal: bool = False
    """True if every table is compared with the source at one LSN and differing rows are copied."""
    synchronous_commit: str = "off"
    binary: bool = False
    streaming: str = "parallel"
    """One of off, on and parallel."""
    two_phase: bool = False
    disable_on_error: bool = False
    password_required: bool = True
    run_as_owner: bool = False
    failover: bool = False
    origin: str = "any"
    create_tables: bool = True
    schema_changes: str = "manual"
    """The treatment of ALTER TABLE at the publisher: manual, as in PostgreSQL, or follow."""
    table_format: str = "delta"
    type_mappings: str = ""
    """The text as written, checked by ``pgtypes.choices``."""
    value_policies: str = ""
    conflict_resolution: str = ""
    auto_refresh: bool = False
    """True if tables that join or leave the publications do so here without a command."""
    history: str = ""
    """Schema of the history tables; empty for none."""
    delete_mode: DeleteMode = DeleteMode.HARD
    lsn: Lsn | None = None
    """None: SKIP (lsn = NONE) if the option is given."""

    def stored(self, *, stated_only: bool = False) -> dict[str, str]:
        """The options that the catalog keeps as text, unchanged.

        With ``stated_only``, only the options that the statement gives.
        """
        values = {
            "binary": _on_or_off(self.binary),
            "streaming": self.streaming,
            "disable_on_error": _on_or_off(self.disable_on_error),
            "password_required": _on_or_off(self.password_required),
            "run_as_owner": _on_or_off(self.run_as_owner),
            "failover": _on_or_off(self.failover),
            "origin": self.origin,
            "schema_changes": self.schema_changes,
            "table_format": self.table_format,
            TYPE_MAPPINGS: self.type_mappings,
            VALUE_POLICIES: self.value_policies,
            CONFLICT_RESOLUTION: self.conflict_resolution,
            "auto_refresh": _on_or_off(self.auto_refresh),
            "history": self.history,
            "delete_mode": self.delete_mode.value,
        }
        if not stated_only:
            return values
        return {name: text for name, text in values.items() if name in self.stated}


def _on_or_off(value: bool) -> str:
    return "true" if value else "false"


_SCHEMA_CHANGES: Final = ("follow", "manual")

_TABLE_FORMATS: Final = ("delta", "iceberg")

_SYNCHRONOUS_COMMIT: Final = ("local", "remote_write", "remote_apply", "on", "off")
# config.sgml hides these spellings; guc_tables.c has them, and they store on or off.
_SYNCHRONOUS_COMMIT_HIDDEN: Final = ("true", "false", "yes", "no", "1", "0")

_SLOT_NAME: Final = re.compile(r"[a-z0-9_]*\Z")
_NAME_BYTES: Final = 63


def subscription_options(
    options: Sequence[StatementOption], accepted: OptionSet
) -> SubscriptionOptions:
    """Check the options of a command; raises PostgreSQL's errors, or 0A000."""
    values: dict[str, Any] = {}
    for option in options:
        if option.name not in accepted.value:
            raise SqlSyntaxError(
                f'unrecognized subscription parameter: "{option.name}"'
            )
        if option.name in values:
            error = SqlSyntaxError("conflicting or redundant options")
            error.position = option.position
            raise error
        values[option.name] = _READERS[option.name](option)
    if accepted is OptionSet.CREATE:
        _check_exclusions(values)
    if values.get("recopy") and values.get("copy_data") is False:
        raise _mutually_exclusive("copy_data = false", "recopy = true")
    if values.get("heal") and values.get("copy_data") is False:
        raise _mutually_exclusive("copy_data = false", "heal = true")
    if values.get("heal") and values.get("recopy"):
        raise _mutually_exclusive("recopy = true", "heal = true")
    stated = frozenset(option.name for option in options)
    return SubscriptionOptions(stated=stated, **values)


def check_publications(names: Sequence[str]) -> None:
    """Raise if a command names a publication twice."""
    earlier_names: set[str] = set()
    for name in names:
        if name in earlier_names:
            raise DuplicateObjectError(f'publication name "{name}" used more than once')
        earlier_names.add(name)


def check_slot_name(name: str) -> None:
    """Raise PostgreSQL's error if a replication slot may not have this name."""
    if not name:
        raise UsageError(
            f'replication slot name "{name}" is too short', sqlstate="42602"
        )
    if len(name.encode()) > _NAME_BYTES:
        raise UsageError(
            f'replication slot name "{name}" is too long', sqlstate="42622"
        )
    if not _SLOT_NAME.match(name):
        raise UsageError(
            f'replication slot name "{name}" contains invalid character',
            sqlstate="42602",
            hint="Replication slot names may only contain lower case letters, numbers,"
            " and the underscore character.",
        )


def _check_exclusions(values: dict[str, Any]) -> None:
    """Refuse options that exclude each other; apply the defaults of connect = false."""
    if values.get("connect") is False:
        for name in ("enabled", "create_slot", "copy_data"):
            if values.get(name):
                raise _mutually_exclusive("connect = false", f"{name} = true")
            values[name] = False
    if "slot_name" in values and values["slot_name"] is None:
        for name in ("enabled", "create_slot"):
            if values.get(name):
                raise _mutually_exclusive("slot_name = NONE", f"{name} = true")
            if name not in values:
                raise SqlSyntaxError(
                    f"subscription with slot_name = NONE must also set {name} = false"
                )


def _mutually_exclusive(first: str, second: str) -> SqlSyntaxError:
    return SqlSyntaxError(f"{first} and {second} are mutually exclusive options")


# ---- values ----------------------------------------------------------------------------


def boolean_option(option: StatementOption) -> bool:
    """defGetBoolean()."""
    if option.value is None:
        return True
    word = option.value.text.lower()
    if option.value.kind is ValueKind.NUMBER:
        if word in ("0", "1"):
            return word == "1"
    elif word in ("true", "on"):
        return True
    elif word in ("false", "off"):
        return False
    raise SqlSyntaxError(f"{option.name} requires a Boolean value")


def _string(option: StatementOption) -> str:
    if option.value is None:
        raise SqlSyntaxError(f"{option.name} requires a parameter")
    return option.value.text


def _slot(option: StatementOption) -> str | None:
    name = _string(option)
    if name == "none":
        return None
    check_slot_name(name)
    return name


def _streaming(option: StatementOption) -> str:
    if option.value is not None and option.value.text.lower() == "parallel":
        return "parallel"
    try:
        return "on" if boolean_option(option) else "off"
    except SqlSyntaxError:
        raise SqlSyntaxError(
            f'{option.name} requires a Boolean value or "parallel"'
        ) from None


def _synchronous_commit(option: StatementOption) -> str:
    text = _string(option)
    if text.lower() not in _SYNCHRONOUS_COMMIT + _SYNCHRONOUS_COMMIT_HIDDEN:
        raise UsageError(
            f'invalid value for parameter "synchronous_commit": "{text}"',
            hint=f"Available values: {', '.join(_SYNCHRONOUS_COMMIT)}.",
        )
    return text


def _origin(option: StatementOption) -> str:
    text = _string(option)
    if text.lower() not in ("none", "any"):
        raise UsageError(f'unrecognized origin value: "{text}"')
    return text.lower()


def _schema_changes(option: StatementOption) -> str:
    text = _string(option)
    if text.lower() not in _SCHEMA_CHANGES:
        raise UsageError(
            f'unrecognized schema_changes value: "{text}"',
            hint=f"Available values: {', '.join(_SCHEMA_CHANGES)}.",
        )
    return text.lower()


def _table_format(option: StatementOption) -> str:
    text = _string(option)
    if text.lower() not in _TABLE_FORMATS:
        raise UsageError(f'unrecognized table_format value: "{text}"')
    return text.lower()


def _type_mappings(option: StatementOption) -> str:
    text = _string(option)
    TypeMappings.parse(text)
    return text


def _value_policies(option: StatementOption) -> str:
    text = _string(option)
    ValuePolicies.parse(text)
    return text


def _conflict_resolution(option: StatementOption) -> str:
    text = _string(option)
    ConflictResolutions.parse(text)
    return text


def _history(option: StatementOption) -> str:
    """Return the schema's name; empty for NONE."""
    name = _string(option)
    if name == "none" or not name:
        return ""
    if len(name.encode()) > _NAME_BYTES:
        raise UsageError(f'schema name "{name}" is too long', sqlstate="42622")
    if name.startswith("pg_") or name in ("information_schema", "wal2lake"):
        raise UsageError(
            f'unacceptable schema name "{name}"',
            sqlstate="42939",
            detail="It is reserved for system schemas.",
        )
    return name


def _delete_mode(option: StatementOption) -> DeleteMode:
    text = _string(option)
    try:
        return DeleteMode(text.lower())
    except ValueError:
        raise UsageError(
            f'unrecognized delete_mode value: "{text}"',
            hint=f"Available values: {', '.join(DeleteMode)}.",
        ) from None


def _lsn(option: StatementOption) -> Lsn | None:
    text = _string(option)
    if text == "none":
        return None
    try:
        lsn = Lsn.parse(text)
    except ValueError as error:
        raise UsageError(str(error), sqlstate="22P02") from None
    if lsn == 0:
        raise UsageError(f"invalid WAL location (LSN): {lsn}")
    return lsn


_READERS: Final[dict[str, Callable[[StatementOption], Any]]] = {
    "connect": boolean_option,
    "enabled": boolean_option,
    "create_slot": boolean_option,
    "slot_name": _slot,
    "copy_data": boolean_option,
    "refresh": boolean_option,
    "recopy": boolean_option,
    "heal": boolean_option,
    "synchronous_commit": _synchronous_commit,
    "binary": boolean_option,
    "streaming": _streaming,
    "two_phase": boolean_option,
    "disable_on_error": boolean_option,
    "password_required": boolean_option,
    "run_as_owner": boolean_option,
    "failover": boolean_option,
    "origin": _origin,
    "create_tables": boolean_option,
    "schema_changes": _schema_changes,
    "table_format": _table_format,
    "type_mappings": _type_mappings,
    "value_policies": _value_policies,
    "conflict_resolution": _conflict_resolution,
    "auto_refresh": boolean_option,
    "history": _history,
    "delete_mode": _delete_mode,
    "lsn": _lsn,
}


# ---- storage parameters ------------------------------------------------------------------

_PARTITION_COLUMNS: Final = "partition_columns"
"""wal2lake's parameter for the columns whose values divide the files of a table."""

_CLUSTER_BY: Final = "cluster_by"
"""wal2lake's parameter for the columns by which neighbouring rows are kept in one file."""

FRESHNESS: Final = "freshness"
"""wal2lake's parameter for the longest time that a table may be behind its source."""

ICEBERG: Final = "iceberg"
"""wal2lake's parameter for a mirror of the table for readers of Iceberg; also the value of a
subscription's ``table_format`` that gives its tables one."""

_ALTERABLE: Final = (FRESHNESS, ICEBERG)
"""The parameters that ALTER TABLE may set."""

_MAX_CLUSTERING_COLUMNS: Final = 4
"""Delta's limit. With each further column, every column tells less about a row's file."""

_STORAGE_PARAMETERS: Final = {
    name.lower(): name
    for name in (
        "delta.checkpointInterval",
        "delta.deletedFileRetentionDuration",
        "delta.enableDeletionVectors",
        "delta.logRetentionDuration",
        _PARTITION_COLUMNS,
        _CLUSTER_BY,
        FRESHNESS,
        ICEBERG,
    )
}
"""The parameters that CREATE TABLE may set, by their folded names.

All but the last four are Delta's table properties.
"""

_PERIOD: Final = re.compile(
    r"(?:interval\s+)?(\d{1,6})\s+(hour|day|week)s?", re.IGNORECASE
)

_LONGEST_INTERVAL: Final = 10_000
"""The greatest checkpoint interval: a reader must read up to this many commits."""

_POSTGRESQL_PARAMETER: Final = re.compile(
    "fillfactor|parallel_workers|toast_tuple_target|user_catalog_table|vacuum_.*"
    "|(log_)?autovacuum_.*"
)


def storage_parameters(cursor: TokenCursor) -> tuple[tuple[str, str], ...]:
    """(name = value, ...): Delta's own names and values, ``partition_columns``, ``cluster_by``,
    ``freshness`` and ``iceberg``."""
    cursor.expect_mark("(")
    parameters = cursor.commas(lambda: _storage_parameter(cursor))
    cursor.expect_mark(")")
    _refuse_repeated([name for name, _ in parameters])
    return parameters


def altered_parameters(cursor: TokenCursor) -> tuple[tuple[str, str | None], ...]:
    """SET (name = value, ...) or RESET (name, ...) of ALTER TABLE; None for a reset parameter."""
    altered: tuple[tuple[str, str | None], ...]
    if cursor.take("set"):
        altered = storage_parameters(cursor)
    else:
        cursor.expect("reset")
        cursor.expect_mark("(")
        altered = cursor.commas(lambda: (_parameter_name(cursor), None))
        cursor.expect_mark(")")
        _refuse_repeated([name for name, _ in altered])
    for name, _ in altered:
        if name not in _ALTERABLE:
            raise FeatureNotSupportedError(
                f'storage parameter "{name}" cannot be changed by ALTER TABLE'
            )
    return altered


def _refuse_repeated(names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(
                f'parameter "{name}" specified more than once', sqlstate="22023"
            )


def _parameter_name(cursor: TokenCursor) -> str:
    name = cursor.label()
    if cursor.take_mark("."):
        name += f".{cursor.label()}"
    return storage_parameter_name(name)


def _storage_parameter(cursor: TokenCursor) -> tuple[str, str]:
    name = _parameter_name(cursor)
    value = "true"
    if cursor.take_mark("="):
        token = cursor.next()
        if token.kind not in (TokenKind.STRING, TokenKind.INTEGER, TokenKind.WORD):
            raise cursor.unexpected(token)
        value = token.value
    return name, storage_value(name, value)


def storage_parameter_name(name: str) -> str:
    """The parameter's name as it is stored.

    Raises 22023 for an unknown name, and 0A000 for a parameter of PostgreSQL.
    """
    stored_name = _STORAGE_PARAMETERS.get(name.lower())
    if stored_name is not None:
        return stored_name
    namespace, _, parameter = name.partition(".")
    if _POSTGRESQL_PARAMETER.fullmatch(name) or namespace == "toast":
        raise FeatureNotSupportedError(
            f'storage parameters like "{name}" are not supported on lake tables'
        )
    if parameter and namespace != "delta":
        text = f'unrecognized parameter namespace "{namespace}"'
    else:
        text = f'unrecognized parameter "{name}"'
    raise UsageError(
        text,
        sqlstate="22023",
        hint=f"Available: {', '.join(_STORAGE_PARAMETERS.values())}.",
    )


def storage_value(name: str, value: str) -> str:
    """A storage parameter's value as Delta writes it; raises 22023 for an invalid value."""
    if name in (_PARTITION_COLUMNS, _CLUSTER_BY):
        return ",".join(map(quote_identifier, _column_names(name, value)))
    wrong = UsageError(
        f'invalid value for storage parameter "{name}": "{value}"', sqlstate="22023"
    )
    if name == FRESHNESS:
        return _freshness(name, value)
    if name.endswith("Duration"):
        period = _PERIOD.fullmatch(value.strip())
        if period is None:
            wrong.hint = 'Such as "30 days": hours, days or weeks.'
            raise wrong
        return f"interval {int(period[1])} {period[2].lower()}s"
    if name.endswith("Interval"):
        if not (value.isdecimal() and 1 <= int(value) <= _LONGEST_INTERVAL):
            wrong.hint = f"Commits between two checkpoints: 1 to {_LONGEST_INTERVAL}."
            raise wrong
        return str(int(value))
    if value.lower() not in ("true", "false", "on", "off"):
        wrong.hint = "true or false."
        raise wrong
    return "true" if value.lower() in ("true", "on") else "false"


def _freshness(name: str, value: str) -> str:
    """A positive interval, as PostgreSQL writes it. Raises 22007 for another text, 22023 for a time
    that is no limit."""
    try:
        interval = interval_of(value)
    except FeatureNotSupportedError:
        raise UsageError(
            f'invalid input syntax for type interval: "{value}"', sqlstate="22007"
        ) from None
    fields = (interval.months, interval.days, interval.microseconds)
    if interval == INFINITY or min(fields) < 0 or not any(fields):
        raise UsageError(
            f'invalid value for storage parameter "{name}": "{value}"',
            sqlstate="22023",
            hint="A time that a table may be behind, such as '2s' or '5 min'.",
        )
    return str(interval)


def _column_names(parameter: str, value: str) -> list[str]:
    """Parse a list of SQL names with commas; raises 22023 for anything else."""
    wrong = UsageError(
        f'invalid value for storage parameter "{parameter}": "{value}"',
        sqlstate="22023",
        hint="Names of columns, as in 'region, day'.",
    )
    try:
        cursor = TokenCursor(value)
        names = list(cursor.commas(cursor.name))
        cursor.expect_end()
    except SqlSyntaxError:
        raise wrong from None
    return names


def partition_columns(
    parameters: tuple[tuple[str, str], ...], columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns of ``partition_columns``. They must exist, and not be all of the columns."""
    names = _existing_columns(_PARTITION_COLUMNS, parameters, columns)
    if names and len(names) == len(columns):
        raise UsageError(
            f'storage parameter "{_PARTITION_COLUMNS}" names all columns of the table',
            sqlstate="42P16",
            hint="Leave one out: data files hold the columns that it does not name.",
        )
    return names


def clustering_columns(
    parameters: tuple[tuple[str, str], ...], columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns of ``cluster_by``.

    They must exist and be at most four. A table with ``partition_columns`` may not have them.
    """
    names = _existing_columns(_CLUSTER_BY, parameters, columns)
    if len(names) > _MAX_CLUSTERING_COLUMNS:
        raise UsageError(
            f"cannot cluster a table by more than {_MAX_CLUSTERING_COLUMNS} columns",
            sqlstate="54011",
            hint="Name those that queries look for most often.",
        )
    if names and _PARTITION_COLUMNS in dict(parameters):
        raise UsageError(
            f'storage parameters "{_PARTITION_COLUMNS}" and "{_CLUSTER_BY}" are mutually'
            " exclusive",
            sqlstate="42P16",
            hint="Leave one of them out.",
        )
    return names


def _existing_columns(
    parameter: str, parameters: tuple[tuple[str, str], ...], columns: Sequence[str]
) -> tuple[str, ...]:
    """The columns that a storage parameter names; none if the parameter is not given."""
    value = dict(parameters).get(parameter)
    if value is None:
        return ()
    names = _column_names(parameter, value)
    for index, name in enumerate(names):
        if name not in columns:
            raise UndefinedObjectError(
                f'column "{name}" named in storage parameter "{parameter}"'
                " does not exist",
                sqlstate="42703",
            )
        if name in names[:index]:
            raise UsageError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
    return tuple(names)
