"""Help pages: plain text, one screen each, readable without color.

The root page imports neither commands nor Typer, so it is fast.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from tpuctl.cli.help.commands import GROUPS, IN_ONE_LINE, LEFT_COLUMN

MAX_WIDTH, MIN_WIDTH = 100, 40
SCREEN = 23  # rows, above the prompt; longer pages have no empty ones
INDENT = "  "
MAX_NAME_WIDTH = 26  # of an option with its value; longer ones get a separate row
EXAMPLE = re.compile(r"(?m)^Example: *(.+(?:\n[ \t]+.+)*)")
TYPES = {int: "NUMBER", float: "NUMBER", str: "TEXT"}
GLOBAL_OPTIONS = (
    "These options go anywhere before --. They can also be set in the environment: "
    "TPUCTL_CLOUD, TPUCTL_STACK_FILE, TPUCTL_JSON=1 and so on. "
    "The command line takes precedence."
)
MORE = "For global options, such as --cloud local and --json: tpuctl help options"


def summary_of(command: Any) -> str:
    """The first sentence of a command's help, without its full stop."""
    text = " ".join(EXAMPLE.sub("", command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s", text, maxsplit=1)[0].rstrip(".:")


def paragraphs_of(command: Any) -> list[str]:
    """What a command's help says, without its examples, each paragraph in one line."""
    text = EXAMPLE.sub("", inspect.cleandoc(command.help or ""))
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


def example_of(command: Any) -> list[str]:
    """The command lines that a command's help gives as examples."""
    text = inspect.cleandoc(command.help or "")
    return [" ".join(example.split()) for example in EXAMPLE.findall(text)]


def root_page() -> str:
    """All commands by group, and where to find more help."""
    width = _width()
    wrap = partial(textwrap.wrap, width=width, break_on_hyphens=False)
    blocks = {
        title: [
            _title(title),
            *(
                f"{INDENT}{name:<11}{entry.summary}"
                for name, entry in group.items()
                if entry.is_in_overview
            ),
        ]
        for title, group in GROUPS.items()
        if title not in IN_ONE_LINE
    }
    lines = [
        "Usage: tpuctl COMMAND [OPTIONS]",
        *wrap("From an empty Google Cloud project to a trained model, and back to zero cost."),
        "",
        *_in_columns(blocks, width),
        *(line for title in IN_ONE_LINE for line in _in_one_line(title, width)),
        "",
        *wrap("Help for a command, with an example: tpuctl help COMMAND"),
        *wrap("Global options (--cloud local needs no account): tpuctl help options"),
    ]
    return "\n".join(lines)


def _in_columns(blocks: Mapping[str, list[str]], width: int) -> list[str]:
    """The blocks in two columns if they fit, otherwise in one."""
    left = [line for title in LEFT_COLUMN for line in blocks[title]]
    right = [line for title in blocks if title not in LEFT_COLUMN for line in blocks[title]]
    middle = max(width // 2, max(map(_length, left)) + len(INDENT))
    if middle + max(map(_length, right)) > width:
        return [line for block in blocks.values() for line in block]
    rows = max(len(left), len(right))
    left += [""] * (rows - len(left))
    right += [""] * (rows - len(right))
    return [
        f"{left_line}{' ' * (middle - _length(left_line))}{right_line}".rstrip()
        for left_line, right_line in zip(left, right, strict=True)
    ]


def _in_one_line(title: str, width: int) -> list[str]:
    lines = textwrap.wrap(f"{title}: {', '.join(GROUPS[title])}", width, subsequent_indent=INDENT)
    return [lines[0].replace(f"{title}:", _title(title), 1), *lines[1:]]


def command_page(command: Any, context: Any) -> str:
    """A command's usage, description, options and examples.

    Options of a panel are only named below its title, so that a page is one screen.
    """
    width = _width()
    lines = textwrap.wrap(
        f"Usage: {context.command_path} {' '.join(usage_of(command, context))}".rstrip(),
        width,
        subsequent_indent=" " * len("Usage: "),
        break_on_hyphens=False,
    )
    for paragraph in paragraphs_of(command):
        lines += ["", *textwrap.wrap(paragraph, width)]
    visible = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [parameter for parameter in visible if parameter.param_type_name == "argument"]
    options = [parameter for parameter in visible if parameter.param_type_name == "option"]
    lines += _section(
        "Arguments",
        [(argument_name(parameter), description_of(parameter, context)) for parameter in arguments],
        width,
    )
    panels = {parameter.rich_help_panel: None for parameter in options}
    lines += _section(
        "Options",
        [
            (option_names(parameter), description_of(parameter, context))
            for parameter in options
            if not parameter.rich_help_panel
        ],
        width,
    )
    for panel in filter(None, panels):
        names = (_names(option) for option in options if option.rich_help_panel == panel)
        lines += ["", *_in_paragraph(panel, names, width)]
    if hasattr(command, "list_commands"):
        lines += _section("Commands", _subcommands(command, context), width)
    if examples := example_of(command):
        lines += ["", _title("Example" if len(examples) == 1 else "Examples")]
        lines += [f"{INDENT}{example}" for example in examples]
    lines += ["", *textwrap.wrap(MORE, width, subsequent_indent=INDENT)]
    if len(lines) > SCREEN:
        lines = [line for line in lines if line]
    return "\n".join(lines)


def _in_paragraph(title: str, words: Iterable[str], width: int) -> list[str]:
    """Options that the documentation describes, by name, in as few lines as possible."""
    text = f"{title}: " + ", ".join(word.replace(" ", "\N{NO-BREAK SPACE}") for word in words)
    lines = textwrap.wrap(text, width, subsequent_indent=INDENT, break_on_hyphens=False)
    lines[0] = lines[0].replace(f"{title}:", _title(title), 1)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _names(parameter: Any) -> str:
    return option_names(parameter).strip()


def options_page(root: Any, context: Any) -> str:
    """The global options."""
    width = _width()
    lines = textwrap.wrap(GLOBAL_OPTIONS, width)
    lines += _section(
        "Options",
        [
            (option_names(parameter), description_of(parameter, context))
            for parameter in root.params
        ],
        width,
    )
    return "\n".join(lines)


def _subcommands(group: Any, context: Any) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield name, f"{summary_of(command)}."


def usage_of(command: Any, context: Any) -> Iterator[str]:
    if any(parameter.param_type_name == "option" for parameter in command.params):
        yield "[OPTIONS]"
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = argument_name(parameter)
            yield name if parameter.required or name[0] == "[" else f"[{name}]"
    if hasattr(command, "list_commands"):
        yield "[COMMAND]" if command.invoke_without_command else "COMMAND"


def argument_name(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    many = "..." if parameter.nargs == -1 and "..." not in name else ""
    return f"{name}{many}"


def option_names(parameter: Any) -> str:
    short = [name for name in parameter.opts if not name.startswith("--")]
    long = [name for name in (*parameter.opts, *parameter.secondary_opts) if name[:2] == "--"]
    names = ", ".join((*short, *long)) if short else f"    {', '.join(long)}"
    return names if parameter.is_flag else f"{names} {_value(parameter)}"


def _value(parameter: Any) -> str:
    described = parameter.type_descriptor
    if parameter.metavar:
        return str(parameter.metavar)
    if described.is_choice:
        return "|".join(str(getattr(choice, "value", choice)) for choice in described.choices)
    if described.is_path:
        return "PATH"
    return TYPES.get(described.annotation, "VALUE")


def description_of(parameter: Any, context: Any) -> str:
    """Its description, with the default value."""
    text = parameter.help or ""
    default = parameter.get_default(context)
    if not parameter.show_default or default in (None, "", False, (), []) or callable(default):
        return text
    default_text = str(getattr(default, "value", default))
    return text if default_text == "." else f"{text} [{default_text}]"


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    """A heading and aligned rows of names and descriptions; empty without rows."""
    rows = list(rows)
    if not rows:
        return []
    column = min(max(len(name) for name, _ in rows), MAX_NAME_WIDTH) + 2 * len(INDENT)
    lines = ["", _title(title)]
    for name, text in rows:
        wrapped = textwrap.wrap(text, width - column, break_on_hyphens=False) or [""]
        start = f"{INDENT}{name}"
        if len(start) + len(INDENT) > column:
            lines.append(start)
            start = ""
        lines.append(f"{start:<{column}}{wrapped[0]}".rstrip())
        lines += [f"{'':<{column}}{line}" for line in wrapped[1:]]
    return lines


def _width() -> int:
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))


def _length(line: str) -> int:
    return len(re.sub(r"\x1b\[\d+m", "", line))


def _title(text: str) -> str:
    return _bold(f"{text}:")


def _bold(text: str) -> str:
    """Bold on a terminal, unless colors are disabled."""
    is_disabled = os.environ.get("NO_COLOR") or os.environ.get("TPUCTL_NO_COLOR")
    if is_disabled or "--no-color" in sys.argv or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text
