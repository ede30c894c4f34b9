"""Answer a shell's completion request; the shells' scripts are in `completion`.

Handles bash's splitting of words at `=` and `:`. Uses local data only and never prints errors.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpuctl.cli.help.commands import COMMANDS

SHELL_VARIABLE = "_TPUCTL_COMPLETE"
LINE_VARIABLE = "_TPUCTL_LINE"


class Candidate(NamedTuple):
    word: str
    about: str = ""  # in one line


def answer(environment: Mapping[str, str]) -> str:
    """The candidates for the shell, one per line."""
    shell = environment[SHELL_VARIABLE]
    if shell == "bash":
        return _bash_answer(environment)
    candidates = candidates_for(*_split_line(environment[LINE_VARIABLE]))
    if shell == "zsh":  # as _describe takes it
        return "\n".join(
            ":".join(field.replace(":", "\\:") for field in candidate if field)
            for candidate in candidates
        )
    return "\n".join("\t".join(filter(None, candidate)) for candidate in candidates)


def _bash_answer(environment: Mapping[str, str]) -> str:
    at = int(environment["COMP_CWORD"])
    typed = environment["COMP_WORDS"].split("\n")  # as the script joins them
    typed = typed if len(typed) > at else _split(environment["COMP_WORDS"])
    words, incomplete = typed[1:at], typed[at] if at < len(typed) else ""
    if incomplete == "=":
        words, incomplete = [*words, "="], ""
    if words[-1:] == ["="] and len(words) > 1:  # split by bash: only the text after = is replaced
        words.pop()
    if ":" in (incomplete, *words[-1:]):
        return ""
    return "\n".join(
        candidate.word
        for candidate in candidates_for([_unquote(word) for word in words], incomplete)
    )


def _split_line(line: str) -> tuple[list[str], str]:
    words = _split(line)[1:]
    if words and not line[-1:].isspace():
        return words[:-1], words[-1]
    return words, ""


def _split(line: str) -> list[str]:
    """Split like a shell; an open quote at the end counts as closed."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words += iter(lexer.get_token, None)
    except ValueError:
        words.append(lexer.token)
    return words


def _unquote(word: str) -> str:
    return next(iter(_split(word)), "")


def candidates_for(words: Sequence[str], incomplete: str) -> list[Candidate]:
    """Candidates after these words that start with `incomplete`; empty where files may follow."""
    if "--" in words:
        return []
    start = ""
    if incomplete.startswith("--") and "=" in incomplete:
        name, _, incomplete = incomplete.partition("=")
        words, start = [*words, name], f"{name}="
    candidates = (
        _commands() if not words and incomplete[:1] != "-" else _candidates(words, incomplete)
    )
    return [
        Candidate(start + candidate.word, candidate.about)
        for candidate in dict.fromkeys(candidates)
        if candidate.word.startswith(incomplete)
    ]


def _commands() -> Iterator[Candidate]:
    """All commands, without loading them."""
    return (Candidate(name, entry.summary) for name, entry in COMMANDS.items())


def _candidates(words: Sequence[str], incomplete: str) -> Iterable[Candidate]:
    from tpuctl.cli.app import command_line

    root = command_line()
    if words and words[-1].startswith("-") and (context := _context(root, words[:-1])):
        for option in _options(context):
            if words[-1] in option.opts and not option.is_flag:
                return _from_items(option.shell_complete(context, incomplete))
    context = _context(root, words)
    if context is None:
        return ()
    if incomplete.startswith("-"):
        return _names(_options(context), words)
    if context.command is root:
        return _commands()
    arguments = (
        parameter
        for parameter in context.command.params
        if parameter.param_type_name == "argument"
        and (parameter.nargs == -1 or _is_missing(context, parameter))
    )
    for argument in arguments:
        return _from_items(argument.shell_complete(context, incomplete))
    if incomplete or hasattr(context.command, "list_commands"):
        return _from_items(context.command.shell_complete(context, incomplete))
    return _names(context.command.get_params(context), words)


def _context(root: Any, words: Sequence[str]) -> Any:
    """The context of the command that the words name; None if there is none."""
    context = root.make_context("tpuctl", [*words], resilient_parsing=True)
    while context.args and hasattr(context.command, "resolve_command"):
        name, command, rest = context.command.resolve_command(context, context.args)
        if command is None:
            return None
        context = command.make_context(name, rest, parent=context, resilient_parsing=True)
    return context


def _is_missing(context: Any, parameter: Any) -> bool:
    return bool(context.get_parameter_source(parameter.name).name != "COMMANDLINE")


def _options(context: Any) -> list[Any]:
    """The options of a command, and the global options."""
    commands = dict.fromkeys((context.command, context.find_root().command))
    return [
        parameter
        for command in commands
        for parameter in command.get_params(context)
        if parameter.param_type_name == "option"
    ]


def _names(options: Iterable[Any], words: Sequence[str]) -> Iterator[Candidate]:
    """The options' long names, without those that were given already."""
    used = {word.partition("=")[0] for word in words}
    for option in options:
        if not option.hidden and (option.multiple or used.isdisjoint(option.opts)):
            yield from (
                Candidate(name, _one_line(option.help))
                for name in option.opts
                if name.startswith("--")
            )


def _from_items(items: Iterable[Any]) -> Iterator[Candidate]:
    return (Candidate(item.value, _one_line(item.help)) for item in items)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def main() -> int:
    """Answer the shell that requested completions."""
    try:
        print(answer(os.environ), flush=True)
    except Exception:  # an error message would garble the command line
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return 0
