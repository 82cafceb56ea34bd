"""The completion scripts of bash, zsh and fish. Pure.

Each script is a list of all words: it starts no process, so a Tab answers at once. In bash the
function ``_wal2lake`` looks for the subcommand before the cursor; zsh and fish have declarations of
their own for this.

Sources: bash manual, "Programmable Completion"; zshcompsys(1), "_arguments"; fish's complete(1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from wal2lake.cli.completion.describe import (
    CompletionKind,
    Program,
    ProgramCommand,
    ProgramOption,
)


def bash(program: Program) -> str:
    """Return bash's script."""
    return "\n".join(_bash(program)) + "\n"


def _bash(program: Program) -> Iterator[str]:
    name = program.name
    yield f"# bash completion of {name}:  source <({name} completion bash)"
    yield f"_{name}() {{"
    yield "    local current previous command= word"
    yield '    current="${COMP_WORDS[COMP_CWORD]}"'
    yield '    previous="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield '        case "$word" in'
    yield f"        {'|'.join(c.name for c in program.commands)})"
    yield '            command="$word"'
    yield "            break ;;"
    yield "        esac"
    yield "    done"
    yield "    COMPREPLY=()"
    yield '    case "$command:$previous" in'
    for command in program.commands:
        for option in command.named:
            if option.kind is not CompletionKind.NONE:
                patterns = "|".join(f"{command.name}:{n}" for n in option.names)
                yield f"    {patterns})"
                yield from _bash_value(option)
                yield "        return ;;"
    yield "    esac"
    yield '    case "$command" in'
    for command in program.commands:
        yield f"    {command.name})"
        if command.named:
            yield '        if [[ "$current" == -* ]]; then'
            yield "    " + _bash_words(_names(command.named))
            yield "            return"
            yield "        fi"
        for argument in command.arguments:
            yield from _bash_value(argument)
        if not command.arguments:
            yield "    " * 2 + _bash_words(_names(command.named)).lstrip()
        yield "        ;;"
    yield "    *)"
    words = [*(c.name for c in program.commands), *_names(program.options)]
    yield _bash_words(words)
    yield "        ;;"
    yield "    esac"
    yield "}"
    yield f"complete -F _{name} {name}"


def _names(options: tuple[ProgramOption, ...]) -> list[str]:
    return [name for option in options for name in option.names]


def _bash_words(words: list[str] | tuple[str, ...]) -> str:
    return f'        COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current"))'


def _bash_value(option: ProgramOption) -> Iterator[str]:
    if option.kind is CompletionKind.CHOICE:
        yield _bash_words(option.choices)
    elif option.kind in (CompletionKind.DIRECTORY, CompletionKind.FILE):
        # Unlike the words of an unquoted substitution, the lines may contain blanks.
        flag = "-d" if option.kind is CompletionKind.DIRECTORY else "-f"
        yield "        compopt -o filenames 2>/dev/null"
        yield "        while IFS= read -r word; do"
        yield '            COMPREPLY+=("$word")'
        yield f'        done < <(compgen {flag} -- "$current")'


def zsh(program: Program) -> str:
    """Return zsh's script."""
    return "\n".join(_zsh(program)) + "\n"


def _zsh(program: Program) -> Iterator[str]:
    name = program.name
    yield f"#compdef {name}"
    yield f"# zsh completion of {name}:  source <({name} completion zsh)"
    yield f"_{name}() {{"
    yield "    local curcontext=$curcontext state line"
    yield "    local -a commands"
    yield "    commands=("
    for command in program.commands:
        yield f"        {_quoted(f'{_colons(command.name)}:{command.help}')}"
    yield "    )"
    yield "    _arguments -C \\"
    for option in program.options:
        yield from (f"        {spec} \\" for spec in _zsh_specs(option))
    yield "        '1:command:->command' \\"
    yield "        '*::argument:->argument'"
    yield "    case $state in"
    yield "    command)"
    yield "        _describe -t commands 'command' commands ;;"
    yield "    argument)"
    yield "        case $line[1] in"
    for command in program.commands:
        specs = [s for option in command.options for s in _zsh_specs(option)]
        yield f"        {command.name})"
        yield "            _arguments \\"
        yield " \\\n".join(f"                {spec}" for spec in specs)
        yield "            ;;"
    yield "        esac ;;"
    yield "    esac"
    yield "}"
    # Autoloaded from a folder of fpath, the file itself is the function.
    yield f'if [ "$funcstack[1]" = "_{name}" ]; then'
    yield f'    _{name} "$@"'
    yield "else"
    yield f"    compdef _{name} {name}"
    yield "fi"


def _zsh_specs(option: ProgramOption) -> Iterator[str]:
    value = ""
    if option.kind is not CompletionKind.NONE:
        action = {
            CompletionKind.CHOICE: f"({' '.join(option.choices)})",
            CompletionKind.DIRECTORY: "_directories",
            CompletionKind.FILE: "_files",
            CompletionKind.TEXT: " ",
        }[option.kind]
        value = f":{_colons(option.metavar)}:{action}"
    if not option.names:
        yield _quoted(f"1{value}")
        return
    help_text = option.help.replace("[", "\\[").replace("]", "\\]")
    # One of the names excludes the others, unless the option may be repeated.
    others = "*" if option.repeats else f"({' '.join(option.names)})"
    for name in option.names:
        yield _quoted(f"{others}{name}[{_colons(help_text)}]{value}")


def _colons(text: str) -> str:
    return text.replace(":", "\\:")


def fish(program: Program) -> str:
    """Return fish's script."""
    return "\n".join(_fish(program)) + "\n"


def _fish(program: Program) -> Iterator[str]:
    name = program.name
    yield f"# fish completion of {name}:  {name} completion fish | source"
    yield f"complete -c {name} -f"
    for option in program.options:
        yield f"complete -c {name} -n __fish_use_subcommand{_fish_option(option)}"
    for command in program.commands:
        yield (
            f"complete -c {name} -n __fish_use_subcommand -a {command.name}"
            f" -d {_fish_quoted(command.help)}"
        )
    for command in program.commands:
        yield from _fish_command(name, command)


def _fish_command(name: str, command: ProgramCommand) -> Iterator[str]:
    used = _fish_quoted(f"__fish_seen_subcommand_from {command.name}")
    for option in command.options:
        yield f"complete -c {name} -n {used}{_fish_option(option)}"


def _fish_option(option: ProgramOption) -> str:
    parts = []
    for name in option.names:
        flag = "-l" if name.startswith("--") else "-s"
        parts.append(f"{flag} {name.lstrip('-')}")
    if option.kind is CompletionKind.CHOICE:
        parts.append(f"{'-x ' if option.names else ''}-a '{' '.join(option.choices)}'")
    elif option.kind is CompletionKind.DIRECTORY:
        parts.append("-x -a '(__fish_complete_directories)'")
    elif option.kind is CompletionKind.FILE:
        parts.append("-r -F")
    elif option.kind is CompletionKind.TEXT and option.names:
        parts.append("-x")
    parts.append(f"-d {_fish_quoted(option.help)}")
    return " " + " ".join(parts)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Final[Mapping[str, Callable[[Program], str]]] = MappingProxyType(
    {"bash": bash, "zsh": zsh, "fish": fish}
)
"""Script of each shell."""
