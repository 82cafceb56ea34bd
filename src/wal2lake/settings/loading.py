"""Loading of one checked ``Settings`` from a file, the environment and a command line.

Later sources win: defaults, ``wal2lake.toml``, ``WAL2LAKE_<SECTION>_<NAME>`` variables,
overrides (``section.name`` to text). An unknown name or a value out of range is a
ConfigurationError that names the source, the parameter and the allowed values: a setting that
is silently ignored is worse than a node that does not start.

Called by: every process of a node at its start, and the supervisor on SIGHUP.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.settings.addresses import check_web_listen
from wal2lake.settings.catalogs import check_catalog, check_iceberg_catalog
from wal2lake.settings.logstore import check_log_store
from wal2lake.settings.objectstore import check_store
from wal2lake.settings.places import file_url_path
from wal2lake.settings.sections import SECTIONS, Settings, attribute_of

FILE_NAME: Final = "wal2lake.toml"

_PREFIX: Final = "WAL2LAKE_"

_TRUE: Final = frozenset({"on", "true", "yes", "1"})
_FALSE: Final = frozenset({"off", "false", "no", "0"})


@dataclass(frozen=True, slots=True)
class _SourcedValue:
    """A value and its source."""

    value: object
    source: str
    is_text: bool
    """From the environment or a command line, where a number is text."""
    is_secret: bool = False
    """No message shows the value."""


def load(
    directory: Path,
    environ: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings of the node in ``directory``.

    A missing file is an error: the directory is not a node's. ``overrides`` maps
    ``section.name`` to the text from the command line.
    """
    sourced: dict[tuple[str, str], _SourcedValue] = {}
    sourced.update(_from_file(directory / FILE_NAME))
    sourced.update(_from_environment(environ))
    for name, text in (overrides or {}).items():
        section, _, key = name.rpartition(".")
        source = "the command line"
        _check_name(section, key, name, source)
        _check_command_line(section, key, name)
        sourced[section, key] = _SourcedValue(text, source, True)
    sections: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        values = {
            f.name: _convert(section, f, sourced[section, f.name])
            for f in fields(kind)
            if (section, f.name) in sourced
        }
        sections[attribute_of(section)] = kind(**values)
    settings = Settings(directory=directory.absolute(), **sections)
    _check_places(settings)
    check_log_store(settings)
    check_store(settings.store, settings.warehouse)
    check_catalog(settings.catalog)
    check_iceberg_catalog(settings.iceberg_catalog)
    check_web_listen(settings.web.listen, ssl=settings.node.ssl)
    return settings


def _check_places(settings: Settings) -> None:
    """Raise ConfigurationError if the log or the warehouse cannot be where the settings say."""
    log, warehouse = settings.log.directory, settings.spark.warehouse
    if "://" in log and file_url_path(log) is None:
        raise ConfigurationError(
            f'invalid value for parameter "log.directory": "{log}"',
            detail="The change log needs a file system that is mounted here: a path, or a"
            " URL like file:///mnt/shared/log.",
            hint="Mount the shared storage on this machine and on those of the cluster.",
        )
    stored = settings.executors_store is not None
    if settings.spark.is_local or (warehouse and (log or stored)):
        return
    missing = "spark.warehouse" if log or stored else "log.directory"
    raise ConfigurationError(
        f'parameter "{missing}" must be set for the Spark master'
        f' "{settings.spark.master}"',
        detail="Executors of a cluster read the change log and write the tables' files:"
        " both must be in an object store, or in a directory that all of its machines mount under"
        " one name.",
        hint='Set "warehouse" of [spark], and "store" of [log] to a URL or "directory" of [log]'
        " to such a directory; or set a master on this machine (local[*]).",
    )


def parameter_names() -> tuple[str, ...]:
    """Return every ``section.name``."""
    return tuple(f"{section}.{f.name}" for section, f in _all_fields())


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting whose value differs."""

    name: str
    """``section.name``."""
    value: object
    """The new value; None for a secret."""
    secret: bool
    """No message shows the value."""
    restart: bool
    """The new value takes effect at the node's next start."""
    receivers: bool
    """Receivers use the setting, so running ones must be told."""


def changes(before: Settings, after: Settings) -> list[SettingChange]:
    """Return each setting whose value differs."""
    changed = []
    for section, f in _all_fields():
        old = getattr(before.section(section), f.name)
        new = getattr(after.section(section), f.name)
        if old != new:
            changed.append(
                SettingChange(
                    f"{section}.{f.name}",
                    None if f.metadata["secret"] else new,
                    secret=f.metadata["secret"],
                    restart=f.metadata["restart"],
                    receivers=f.metadata["receivers"],
                )
            )
    return changed


def fixed_at_start(settings: Settings) -> dict[str, str]:
    """Return the settings that a reload does not change, as environment variables. Processes
    that start later get these values even if the file has changed by then."""
    return {
        _variable(section, f.name): _shown(getattr(settings.section(section), f.name))
        for section, f in _all_fields()
        if f.metadata["restart"]
    }


def _variable(section: str, key: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_PREFIX}{attribute_of(section)}_{key}".upper()


def _shown(value: object) -> str:
    """Return a value as text that ``_convert`` reads back."""
    if not isinstance(value, Mapping):
        return str(value)
    # JSON escapes characters above U+FFFF as surrogate pairs, which TOML does not allow.
    shown = json.JSONEncoder(ensure_ascii=False).encode
    pairs = (f"{shown(k)} = {shown(v)}" for k, v in value.items())
    return f"{{ {', '.join(pairs)} }}"


def _all_fields() -> Iterator[tuple[str, Field[Any]]]:
    for section, kind in SECTIONS.items():
        for f in fields(kind):
            yield section, f


# ---- sources ------------------------------------------------------------------------


def _from_file(path: Path) -> dict[tuple[str, str], _SourcedValue]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f'could not access the server configuration file "{path}":'
            " No such file or directory",
            hint=f'Run "wal2lake init -D {path.parent}" first, or give another'
            " directory with -D.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f'could not read configuration file "{path}": {reason_of(error)}'
        ) from None
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # A number of too many digits is a ValueError, brackets in brackets a RecursionError.
        raise ConfigurationError(
            f'syntax error in file "{path}"{_line_of(error)}',
            hint='Write text in quotes and one "name = value" on a line'
            " (https://toml.io).",
        ) from None
    source = f'file "{path}"'
    sourced: dict[tuple[str, str], _SourcedValue] = {}
    for section, table in document.items():
        if section not in SECTIONS or not isinstance(table, dict):
            raise ConfigurationError(
                f'unrecognized section "{section}" in {source}',
                hint=_suggest(section, list(SECTIONS), "The sections are"),
            )
        for name, key, value in _settings_of(section, table):
            _check_name(name, key, f"{name}.{key}", source)
            sourced[name, key] = _SourcedValue(value, source, False)
    return sourced


def _settings_of(
    section: str, table: Mapping[str, object]
) -> Iterator[tuple[str, str, object]]:
    """Yield section, name and value of what a table of the file has, tables in it that are
    sections of their own included."""
    for key, value in table.items():
        inner = f"{section}.{key}"
        if inner in SECTIONS and isinstance(value, dict):
            yield from _settings_of(inner, value)
        else:
            yield section, key, value


def _line_of(error: ValueError | RecursionError) -> str:
    # Before Python 3.14 the exception has no attribute for the line.
    match = re.search(r"at (line \d+|end of document)", str(error))
    return "" if match is None else f" at {match[1]}".replace("document", "file")


def _from_environment(
    environ: Mapping[str, str],
) -> dict[tuple[str, str], _SourcedValue]:
    sourced: dict[tuple[str, str], _SourcedValue] = {}
    for variable, text in environ.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        # The longest one: a section may have sections of its own.
        begins = [s for s in SECTIONS if name.startswith(f"{attribute_of(s)}_")]
        # Variables that are no settings (WAL2LAKE_FAILPOINTS ...) have no section.
        if not begins:
            continue
        section = max(begins, key=len)
        key = name.removeprefix(f"{attribute_of(section)}_")
        source = f"environment variable {variable}"
        _check_name(section, key, f"{section}.{key}", source)
        sourced[section, key] = _SourcedValue(text, source, True)
    return sourced


def _check_name(section: str, key: str, name: str, source: str) -> None:
    if section in SECTIONS and key in {f.name for f in fields(SECTIONS[section])}:
        return
    if section in SECTIONS:
        names = [f"{section}.{f.name}" for f in fields(SECTIONS[section])]
    else:
        names = list(parameter_names())
    raise ConfigurationError(
        f'unrecognized configuration parameter "{name}" in {source}',
        hint=_suggest(name, names, "Allowed are"),
    )


def _check_command_line(section: str, key: str, name: str) -> None:
    """Raise ConfigurationError if a command line may not have the setting."""
    kind = SECTIONS[section]
    if any(f.name == key and not f.metadata["command_line"] for f in fields(kind)):
        variable = _variable(section, key)
        raise ConfigurationError(
            f'parameter "{name}" cannot be set on the command line',
            detail="Every user of this machine can read the command lines of processes.",
            hint=f"Set it in {FILE_NAME}, or as environment variable {variable}.",
        )


def _suggest(name: str, names: list[str], lead: str) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    guess = f'Perhaps you meant "{close[0]}". ' if close else ""
    return f"{guess}{lead}: {', '.join(names)}."


# ---- values ---------------------------------------------------------------------------


def _convert(section: str, f: Field[Any], entry: _SourcedValue) -> object:
    name = f"{section}.{f.name}"
    entry = replace(entry, is_secret=f.metadata["secret"])
    kind = str(f.type)
    if kind == "int":
        return _integer(name, f.metadata, entry)
    if kind == "bool":
        return _boolean(name, entry)
    if kind == "str":
        return _text(name, f.metadata, entry)
    return _table(name, entry)


def _integer(name: str, limits: Mapping[str, Any], entry: _SourcedValue) -> int:
    value = entry.value
    if entry.is_text and re.fullmatch(r"-?[0-9]{1,30}", str(value).strip()):
        value = int(str(value))
    low, high = limits["minimum"], limits["maximum"]
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(name, entry, f"a whole number from {low} to {high}")
    if not low <= value <= high:
        raise ConfigurationError(
            f'{value} is outside the valid range for parameter "{name}"'
            f" ({low} .. {high}) in {entry.source}",
            hint=f"Choose a value from {low} to {high}.",
        )
    return value


def _boolean(name: str, entry: _SourcedValue) -> bool:
    value = entry.value
    if isinstance(value, bool):
        return value
    if entry.is_text and str(value).lower() in _TRUE | _FALSE:
        return str(value).lower() in _TRUE
    raise _invalid(name, entry, "true or false")


def _text(name: str, limits: Mapping[str, Any], entry: _SourcedValue) -> str:
    value = entry.value
    if not isinstance(value, str):
        raise _invalid(name, entry, limits["allowed"] or "text in quotes")
    if limits["choices"] and value not in limits["choices"]:
        raise _invalid(name, entry, " or ".join(limits["choices"]))
    if limits["pattern"] and not re.fullmatch(limits["pattern"], value):
        raise _invalid(name, entry, limits["allowed"])
    return value


def _table(name: str, entry: _SourcedValue) -> Mapping[str, str]:
    value = entry.value
    words = 'a table of texts, for example { "spark.ui.enabled" = "true" }'
    if entry.is_text:
        try:
            value = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            raise _invalid(name, entry, words) from None
    if not isinstance(value, dict):
        raise _invalid(name, entry, words)
    flat = dict(_flatten(name, value, entry, words))
    return MappingProxyType(flat)


def _flatten(
    name: str,
    table: Mapping[str, object],
    entry: _SourcedValue,
    words: str,
    prefix: str = "",
) -> Iterator[tuple[str, str]]:
    # In TOML an unquoted a.b.c = 1 is nested tables; Spark's property is the dotted name.
    for key, value in table.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            yield from _flatten(name, value, entry, words, path)
        elif isinstance(value, bool):
            yield path, "true" if value else "false"
        elif isinstance(value, str | int | float):
            yield path, str(value)
        else:
            raise _invalid(f"{name}.{path}", entry, words)


def _invalid(name: str, entry: _SourcedValue, allowed: str) -> ConfigurationError:
    shown = "(not shown)" if entry.is_secret else repr(entry.value)
    return ConfigurationError(
        f'invalid value for parameter "{name}" in {entry.source}: {shown}',
        hint=f"Allowed is {allowed}.",
    )
