"""What a shell is told when somebody presses Tab.

The scripts are in `shells`. The answer knows that global options may stand anywhere and that bash
takes words apart at `=` and `:`, and it comes from this machine alone. It never prints an error.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpuctl.cli.arguments import GLOBAL_VALUES, hoist
from tpuctl.cli.commands import COMMANDS

__all__ = ["VARIABLE", "Offer", "answer", "main", "offers"]

VARIABLE = "_TPUCTL_COMPLETE"
LINE = "_TPUCTL_LINE"


class Offer(NamedTuple):
    word: str
    about: str = ""  # in one line


def answer(environment: Mapping[str, str]) -> str:
    """What to print for the shell that asks: an offer a line."""
    shell = environment[VARIABLE]
    if shell == "bash":
        return _for_bash(environment)
    found = offers(*_typed(environment[LINE]))
    if shell == "zsh":  # as _describe takes it
        return "\n".join(":".join(one.replace(":", "\\:") for one in told if one) for told in found)
    return "\n".join("\t".join(filter(None, told)) for told in found)


def _for_bash(environment: Mapping[str, str]) -> str:
    at = int(environment["COMP_CWORD"])
    typed = environment["COMP_WORDS"].split("\n")  # as the script joins them
    typed = typed if len(typed) > at else _split(environment["COMP_WORDS"])
    words, incomplete = typed[1:at], typed[at] if at < len(typed) else ""
    if incomplete == "=":
        words, incomplete = [*words, "="], ""
    if words[-1:] == ["="] and len(words) > 1:  # taken apart: only what follows it is replaced
        words.pop()
    if ":" in (incomplete, *words[-1:]):
        return ""
    return "\n".join(one.word for one in offers([_plain(one) for one in words], incomplete))


def _typed(line: str) -> tuple[list[str], str]:
    words = _split(line)[1:]
    if words and not line[-1:].isspace():
        return words[:-1], words[-1]
    return words, ""


def _split(line: str) -> list[str]:
    """As a shell does; an open quote at the end is as if it were closed."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words += iter(lexer.get_token, None)
    except ValueError:
        words.append(lexer.token)
    return words


def _plain(word: str) -> str:
    return next(iter(_split(word)), "")


def offers(words: Sequence[str], incomplete: str) -> list[Offer]:
    """What may follow these words and begins with `incomplete`; nothing where files may."""
    words = list(words)
    if "--" in words:
        return []
    before = ""
    if incomplete.startswith("--") and "=" in incomplete:
        name, _, incomplete = incomplete.partition("=")
        words.append(name)
        before = f"{name}="
    elif not incomplete.startswith("-") and not hoist(words):
        return _beginning([Offer(name, one.summary) for name, one in COMMANDS.items()], incomplete)
    found = _beginning(_after(words, incomplete), incomplete)
    return [Offer(before + one.word, one.about) for one in found]


def _beginning(found: Iterable[Offer], incomplete: str) -> list[Offer]:
    return [one for one in dict.fromkeys(found) if one.word.startswith(incomplete)]


def _after(words: list[str], incomplete: str) -> Iterator[Offer]:
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
        yield from _values(next(one for one in parameters if last in one.opts), context, incomplete)
    elif incomplete.startswith("-"):
        yield from _options(parameters, context)
    elif command is root:
        yield from (Offer(name, one.summary) for name, one in COMMANDS.items())
    elif hasattr(command, "list_commands"):
        from tpuctl.cli.help_pages import summary_of

        yield from (Offer(name, summary_of(one)) for name, one in command.commands.items())
    else:
        argument = _next_argument(command, context)
        if argument is not None:
            yield from _values(argument, context, incomplete)
        elif not incomplete:
            yield from _options(command.params, context)


def _takes_value(root: Any, words: Sequence[str], name: str) -> bool:
    command, _ = _context(root, words)
    return command is not None and any(
        name in one.opts and not one.is_flag
        for one in command.params
        if one.param_type_name == "option"
    )


def _context(root: Any, words: Sequence[str]) -> tuple[Any, Any]:
    """The command that the words name, and what they say to it; None for one there is not."""
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


def _is_given(parameter: Any, context: Any) -> bool:
    while context is not None:
        source = context.get_parameter_source(parameter.name)
        if parameter in context.command.params and source is not None:
            return bool(source.name == "COMMANDLINE")
        context = context.parent
    return False


def _options(parameters: Iterable[Any], context: Any) -> Iterator[Offer]:
    for one in parameters:
        is_shown = one.param_type_name == "option" and not one.hidden
        if is_shown and (one.multiple or not _is_given(one, context)):
            yield from (Offer(name, _line(one.help)) for name in one.opts if name[:2] == "--")
    yield Offer("--help", "Show how it is used.")


def _next_argument(command: Any, context: Any) -> Any:
    for one in command.params:
        if one.param_type_name == "argument" and (one.nargs == -1 or not _is_given(one, context)):
            return one
    return None


def _values(parameter: Any, context: Any, incomplete: str) -> Iterator[Offer]:
    for one in parameter.shell_complete(context, incomplete):
        yield Offer(one.value, _line(one.help))


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def main() -> int:
    """Answer the shell that started this program for it."""
    try:
        print(answer(os.environ), flush=True)
    except Exception:  # it would stand in the middle of what is being typed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return 0
