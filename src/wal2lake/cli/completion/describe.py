"""Subcommands, options and arguments of the program, as values.

Takes argparse's parser, whose lists of actions are its only description; returns frozen values that
``shells`` and tools/reference.py print. Pure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final


class CompletionKind(Enum):
    """Kind of an option's value, which decides how it is completed."""

    NONE = "none"
    """It takes no value."""
    CHOICE = "choice"
    """One of a list."""
    DIRECTORY = "directory"
    FILE = "file"
    TEXT = "text"
    """Anything else: nothing is offered."""


_KIND_OF_METAVAR: Final = {"DIR": CompletionKind.DIRECTORY, "FILE": CompletionKind.FILE}


@dataclass(frozen=True, slots=True)
class ProgramOption:
    """An option, or an argument without a name of its own."""

    names: tuple[str, ...]
    """``-D`` and ``--directory``; empty for an argument."""
    metavar: str
    """Placeholder of the value; empty if there is none."""
    help: str
    kind: CompletionKind
    choices: tuple[str, ...]
    required: bool
    repeats: bool
    """It may be given more than once."""


@dataclass(frozen=True, slots=True)
class ProgramCommand:
    """A subcommand."""

    name: str
    help: str
    options: tuple[ProgramOption, ...]

    @property
    def arguments(self) -> tuple[ProgramOption, ...]:
        """Arguments without a name."""
        return tuple(option for option in self.options if not option.names)

    @property
    def named(self) -> tuple[ProgramOption, ...]:
        """Options with names."""
        return tuple(option for option in self.options if option.names)


@dataclass(frozen=True, slots=True)
class Program:
    """The whole program."""

    name: str
    options: tuple[ProgramOption, ...]
    commands: tuple[ProgramCommand, ...]


def describe_program(parser: argparse.ArgumentParser) -> Program:
    """Return the description of a parser with subcommands."""
    commands: list[ProgramCommand] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {a.dest: a.help or "" for a in action._choices_actions}
            commands = [
                ProgramCommand(name, texts[name], tuple(_options(command)))
                for name, command in action.choices.items()
            ]
    return Program(parser.prog, tuple(_options(parser)), tuple(commands))


def _options(parser: argparse.ArgumentParser) -> Iterator[ProgramOption]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        takes_value = action.nargs != 0
        choices = tuple(map(str, action.choices or ()))
        metavar = action.metavar if isinstance(action.metavar, str) else None
        yield ProgramOption(
            names=tuple(action.option_strings),
            metavar=(metavar or action.dest.upper()) if takes_value else "",
            help=action.help or "",
            kind=_kind(takes_value, choices, metavar),
            choices=choices,
            required=action.required,
            repeats=isinstance(action, argparse._AppendAction),
        )


def _kind(
    takes_value: bool, choices: tuple[str, ...], metavar: str | None
) -> CompletionKind:
    if not takes_value:
        return CompletionKind.NONE
    if choices:
        return CompletionKind.CHOICE
    return _KIND_OF_METAVAR.get(metavar or "", CompletionKind.TEXT)
