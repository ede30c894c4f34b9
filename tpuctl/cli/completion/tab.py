"""Answer a shell's completion request; the shells' scripts are in `shells`.

Handles global options anywhere, and bash's splitting of words at `=` and `:`. Uses local data only
and never prints errors.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpuctl.cli.arguments import GLOBAL_VALUES, hoist
from tpuctl.cli.commands import COMMANDS

__all__ = ["SHELL_VARIABLE", "Candidate", "answer", "candidates_for", "main"]

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
        offer.word for offer in candidates_for([_unquote(word) for word in words], incomplete)
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
    words = list(words)
    if "--" in words:
        return []
    before = ""
    if incomplete.startswith("--") and "=" in incomplete:
        name, _, incomplete = incomplete.partition("=")
        words.append(name)
        before = f"{name}="
    elif not incomplete.startswith("-") and not hoist(words):
        return _matching(
            [Candidate(name, entry.summary) for name, entry in COMMANDS.items()], incomplete
        )
    candidates = _matching(_candidates(words, incomplete), incomplete)
    return [Candidate(before + offer.word, offer.about) for offer in candidates]


def _matching(candidates: Iterable[Candidate], incomplete: str) -> list[Candidate]:
    return [offer for offer in dict.fromkeys(candidates) if offer.word.startswith(incomplete)]


def _candidates(words: list[str], incomplete: str) -> Iterator[Candidate]:
    from tpuctl.cli.app import command_line

    root = command_line()
    last = words.pop() if words and words[-1].startswith("-") else None
    if last is not None and last not in GLOBAL_VALUES and not _takes_value(root, words, last):
        words.append(last)
        last = None
    command, context = _context(root, words)
    if command is None:
        return
    parameters = [*command.params, *([] if command is root else root.params)]
    if last is not None:
        yield from _values(
            next(parameter for parameter in parameters if last in parameter.opts),
            context,
            incomplete,
        )
    elif incomplete.startswith("-"):
        yield from _options(parameters, context)
    elif command is root:
        yield from (Candidate(name, entry.summary) for name, entry in COMMANDS.items())
    elif hasattr(command, "list_commands"):
        from tpuctl.cli.help_pages import summary_of

        yield from (
            Candidate(name, summary_of(subcommand)) for name, subcommand in command.commands.items()
        )
    else:
        argument = _next_argument(command, context)
        if argument is not None:
            yield from _values(argument, context, incomplete)
        elif not incomplete:
            yield from _options(command.params, context)


def _takes_value(root: Any, words: Sequence[str], name: str) -> bool:
    command, _ = _context(root, words)
    return command is not None and any(
        name in parameter.opts and not parameter.is_flag
        for parameter in command.params
        if parameter.param_type_name == "option"
    )


def _context(root: Any, words: Sequence[str]) -> tuple[Any, Any]:
    """The command that the words name, or None, and its context."""
    front = hoist(words)
    rest = [*front]
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in GLOBAL_VALUES else 1]
    context = root.make_context("tpuctl", front[: len(front) - len(rest)], resilient_parsing=True)
    command = root
    while rest and hasattr(command, "list_commands"):
        name = rest.pop(0)
        command = command.get_command(context, name)
        if command is None:
            return None, context
        if hasattr(command, "list_commands"):
            context = command.make_context(name, [], parent=context, resilient_parsing=True)
        else:
            context = command.make_context(name, rest, parent=context, resilient_parsing=True)
    return command, context


def _is_set(parameter: Any, context: Any) -> bool:
    while context is not None:
        source = context.get_parameter_source(parameter.name)
        if parameter in context.command.params and source is not None:
            return bool(source.name == "COMMANDLINE")
        context = context.parent
    return False


def _options(parameters: Iterable[Any], context: Any) -> Iterator[Candidate]:
    for parameter in parameters:
        is_shown = parameter.param_type_name == "option" and not parameter.hidden
        if is_shown and (parameter.multiple or not _is_set(parameter, context)):
            yield from (
                Candidate(name, _one_line(parameter.help))
                for name in parameter.opts
                if name[:2] == "--"
            )
    yield Candidate("--help", "Show help.")


def _next_argument(command: Any, context: Any) -> Any:
    for parameter in command.params:
        if parameter.param_type_name == "argument" and (
            parameter.nargs == -1 or not _is_set(parameter, context)
        ):
            return parameter
    return None


def _values(parameter: Any, context: Any, incomplete: str) -> Iterator[Candidate]:
    for item in parameter.shell_complete(context, incomplete):
        yield Candidate(item.value, _one_line(item.help))


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
