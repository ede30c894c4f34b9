"""The state of one invocation: global options, the view, clients and confirmations."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from tpuctl.errors import Diagnostic, Usage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tpuctl.api.interface import Tpuctl
    from tpuctl.cli.parameters.options import ListFormat
    from tpuctl.model.events import Event
    from tpuctl.model.stack.stack import Stack
    from tpuctl.model.troubleshooting.command_record import CommandRecorder
    from tpuctl.view.progress.base import View
    from tpuctl.view.responses.base import Response

    Answer = (
        Response
        | DataclassInstance
        | Sequence[Response | dict[str, Any] | str]
        | dict[str, Any]
        | None
    )

T = TypeVar("T")
ANSWERS = " [Y/n]: "
REPEAT = "Repeat the command to continue where it stopped."
AFTER_INTERRUPT = {
    "up": (
        "operations in progress continue in the cloud and are charged; queued resource requests "
        "stay in the queue",
        f"{REPEAT} Or delete everything:\n    tpuctl down",
    ),
    "down": (
        "operations in progress continue in the cloud; all other resources remain and are charged",
        REPEAT,
    ),
    "run": ("no job was left running", "To verify:\n    tpuctl jobs"),
    "debug-dump": ("nothing was written", "Repeat the command."),
    "notebook": (
        "a notebook that was submitted goes on, and the TPU is charged",
        "To see whether there is one, and to connect to it:\n"
        "    tpuctl status\n    tpuctl notebook",
    ),
    "cp": ("complete files were copied, others were not", "Repeat the command."),
    "wait": ("the job is still running", "To wait again:\n    tpuctl wait"),
    "stop": ("the job may still be running", REPEAT),
}
# A command in a hint that depends on the stack's cloud.
COMMAND = re.compile(
    r"(?m)^(\s+)tpuctl (--cloud local )?(?!--|local\b|types\b|zones\b|runtimes\b|prices\b)"
)


class CloudName(StrEnum):
    google = "google"
    local = "local"


@dataclass
class State:
    """Global options, and the result of the command that ran."""

    arguments: Sequence[str] = ()  # of the command line
    command: str = ""
    named_stack_file: Path | None = None  # by the option or the environment
    named_stack: tuple[str, str] | None = None  # name and project, if there is no stack file
    tpu_options: str = ""  # of `run`, if they are in place of a stack file
    cloud: CloudName = CloudName.google
    impersonated: str = ""  # the service account to act as, by the option
    json: bool = False  # or YAML
    is_yaml: bool = False
    is_wide: bool = False  # tables have more columns
    events: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    yes: bool = False
    data: Any = None  # of the envelope
    script: str = ""  # that the command is about, quoted for a shell; or -m and a module
    program: str = ""  # the same with its arguments
    jobs: list[str] = field(default_factory=list)  # ids of the jobs it came across
    clients: list[Tpuctl] = field(default_factory=list, repr=False)  # of the stacks it used
    diagnostics: list[Diagnostic] = field(default_factory=list)  # the problems that were reported
    recorder: CommandRecorder | None = field(default=None, repr=False)
    after_interrupt: tuple[str, ...] = ()  # what Ctrl-C leaves, if not the default
    _view: View | None = field(default=None, repr=False)

    @property
    def view(self) -> View:
        if self._view is None:
            from tpuctl.view import choose

            self._view = choose(
                json=self.json, events=self.events, quiet=self.quiet, no_color=self.no_color
            )
        return self._view

    @view.setter
    def view(self, view: View) -> None:
        self._view = view

    @cached_property
    def stack_file(self) -> Path:
        """The named stack file, otherwise the nearest one, and says which if it is not here."""
        from tpuctl.model.stack.stack_search import STACK_FILE, find_stack_file

        if self.named_stack_file is not None:
            return self.named_stack_file
        path = find_stack_file(Path(), self.warn)
        if path == Path(STACK_FILE):
            return path
        path = Path(os.path.relpath(path))
        self.announce(f"Using the stack file {path}.")
        return path

    def announce(self, text: str) -> None:
        """Tell what is going on, on stderr."""
        from tpuctl.model.events import Note

        self.view.on(Note(text))

    def warn(self, diagnostic: Diagnostic) -> None:
        from tpuctl.model.events import WarningIssued

        self.view.on(WarningIssued(diagnostic))

    @property
    def is_free(self) -> bool:
        """Whether the cloud in use is free; prices are then what Google would charge."""
        return self.cloud is CloudName.local

    def close_view(self) -> None:
        """Close the view if there is one."""
        if self._view is not None:
            self._view.close()

    @property
    def command_prefix(self) -> str:
        """What starts another command for the same cloud and stack."""
        parts = [self.cloud_prefix]
        if self.named_stack_file is not None and "TPUCTL_STACK_FILE" not in os.environ:
            parts.append(f"--stack-file {shlex.quote(str(self.named_stack_file))}")
        return " ".join(parts)

    @property
    def cloud_prefix(self) -> str:
        """What starts another command for the same cloud."""
        needs_option = self.cloud is CloudName.local and os.environ.get("TPUCTL_CLOUD") != "local"
        prefix = "tpuctl --cloud local" if needs_option else "tpuctl"
        if self.impersonated:
            prefix += f" --impersonate-service-account {shlex.quote(self.impersonated)}"
        return prefix

    @property
    def stack_options(self) -> str:
        """The options that name a stack without a file; empty if it has one."""
        if self.named_stack is None:
            return ""
        name, project = self.named_stack
        return f"--stack {shlex.quote(name)} --project {shlex.quote(project)}"

    def guess_script(self) -> str:
        """The script next to the stack file, quoted for a shell; `SCRIPT` if there is not one."""
        from tpuctl.flows.stack.init import guess_script

        return guess_script(self.stack_file)

    def with_command_prefix(self, diagnostic: Diagnostic) -> Diagnostic:
        """The diagnostic as `as_typed`, and without keys in its detail."""
        from tpuctl.model.text.redaction import without_keys

        hint = self.as_typed(diagnostic.hint)
        return replace(diagnostic, detail=without_keys(diagnostic.detail), hint=hint)

    def as_typed(self, hint: str) -> str:
        """The hint with its commands completed for this cloud and stack, and without keys, which
        errors of libraries may contain."""
        from tpuctl.model.text.redaction import without_keys

        return self._add_command_prefix(without_keys(hint))

    def _add_command_prefix(self, text: str) -> str:
        if "tpuctl" not in text:
            return text
        from tpuctl.model.jobs.hint_commands import with_job, with_script, with_stack, with_tpu

        if self.tpu_options:
            text = with_tpu(text, self.tpu_options)
        if "SCRIPT" in text:
            script = self.script or self.guess_script()
            text = with_script(text, script, self.program)
        if len(self.jobs) == 1:
            text = with_job(text, self.jobs[0])
        if self.named_stack is not None:
            text = with_stack(text, self.stack_options)

        def with_prefix(match: re.Match[str]) -> str:
            prefix = self.command_prefix
            if match[2] and "--cloud" not in prefix:
                prefix = prefix.replace("tpuctl", f"tpuctl {match[2].rstrip()}", 1)
            return f"{match[1]}{prefix} "

        return COMMAND.sub(with_prefix, text)

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics += diagnostics
        self.view.problems([self.with_command_prefix(diagnostic) for diagnostic in diagnostics])

    def _show_event(self, event: Event) -> None:
        from tpuctl.model.events import Note, WarningIssued

        if isinstance(event, WarningIssued):
            event = replace(event, diagnostic=self.with_command_prefix(event.diagnostic))
        elif isinstance(event, Note):
            event = Note(self._add_command_prefix(event.text))
        self.view.on(event)

    def typed(self, command: str) -> str:
        """The line to type for a command, such as `logs -f`, for this cloud and stack."""
        return self._add_command_prefix(f"    tpuctl {command}").strip()

    def tpuctl(
        self,
        name: str = "",
        project: str = "",
        *,
        stack: Stack | None = None,
        is_recorded: bool = True,
    ) -> Tpuctl:
        """A client for the stack file's stack, the named one, or `stack`, which has no file; its
        events go to the view, its calls to the record of this command."""
        from tpuctl.api.interface import Tpuctl
        from tpuctl.model.stack.stack_search import STACK_FILE

        if is_recorded and self.recorder is None:
            from tpuctl.model.troubleshooting.command_record import CommandRecorder

            self.recorder = CommandRecorder(self.arguments)
        tpuctl = Tpuctl(
            STACK_FILE if name or project or stack is not None else self.stack_file,
            name=name,
            project=project,
            cloud=self.cloud.value,
            emit=self._show_event,
        )
        if stack is not None:
            tpuctl.stack_file, tpuctl.stack = stack.path, stack
            self.named_stack = (stack.name, stack.project)
        elif name and project:
            self.named_stack = (name, project)
        tpuctl.may_install = self.asks_permission
        tpuctl.record_call = (
            self.recorder.call if is_recorded and self.recorder is not None else None
        )
        self.clients.append(tpuctl)
        tpuctl.names_workers = not (self.json and self.events)  # events name the worker
        return tpuctl

    @property
    def stacks(self) -> Iterator[tuple[str, str, str]]:
        """Cloud, project and name of the stacks in use, as far as they were loaded."""
        for client in self.clients:
            stack = vars(client).get("stack")
            if stack is not None:
                yield str(client.cloud_name), str(stack.project), str(stack.name)

    def use_format(self, output_format: ListFormat | None) -> None:
        """Use a format of lists for the result. Raises Usage if it conflicts with --json."""
        if output_format is None:
            return
        if self.json and output_format != "json":
            raise Usage(
                "Conflicting options",
                f"--json and -o {output_format} both set the output format",
                hint="Remove one of them.",
                where="-o",
            )
        self.is_wide, self.is_yaml = output_format == "wide", output_format == "yaml"
        self.json = not self.is_wide

    def record(self, answer: Callable[[], Answer] | Answer) -> None:
        """Keep the result for the envelope; a function that returns it is only called if needed."""
        if self.json:
            self.data = _as_json(answer() if callable(answer) else answer)

    def answer(
        self, answer: Callable[[], Answer] | Answer, show: Callable[[], None] | None = None
    ) -> None:
        """Set the result: kept for the envelope, or shown on stdout."""
        self.record(answer)
        self.close_view()
        if not self.json and show is not None:
            show()

    def note(self, text: str) -> None:
        """Print what a person reads beside the result, on stdout; nothing with --quiet or JSON."""
        if not (self.quiet or self.json):
            from tpuctl.view.terminal.text_wrapping import print_wrapped

            print_wrapped(text)

    def suggest(self, command: str) -> None:
        """The line of advice after a success: one command."""
        self.note(f"\nNext:\n    {command}")

    def wait_for(self, work: Awaitable[T]) -> T:
        """Run a flow to its end."""
        import asyncio

        async def main() -> T:
            return await work

        return asyncio.run(main())

    def confirm(self, question: str, *, default: bool = True) -> None:
        """Ask, unless --yes. Raises Usage without a terminal, Declined if the user declines."""
        if self.yes:
            return
        if not self.can_ask:
            raise Usage(
                "Not confirmed",
                f"{question} Confirmation requires a terminal",
                hint="Pass --yes to confirm.",
                where="--yes",
            )
        from tpuctl.view.terminal.text_wrapping import readable_width, wrap

        # What follows the question belongs to its last line.
        question = wrap(question, readable_width(sys.stderr) - len(ANSWERS))
        if not self._ask(lambda: typer.confirm(question, default=default, err=True)):
            raise Declined

    @property
    def can_ask(self) -> bool:
        """Whether there is a terminal for questions."""
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    def choose(self, question: str, options: Sequence[str]) -> int:
        """Let the user choose a line by its number, and return its index. Requires `can_ask`;
        raises Declined on Ctrl-C."""
        from tpuctl.view.terminal.text_wrapping import print_wrapped

        numbers = [str(number) for number, _ in enumerate(options, 1)]
        lines = [f"  {number}  {option}" for number, option in zip(numbers, options, strict=True)]

        def parse(text: str) -> int:
            if text not in numbers:
                raise typer.BadParameter(f"{text} is not a number from 1 to {len(options)}")
            return numbers.index(text)

        def prompt() -> int:
            print_wrapped("\n".join([question, *lines]), sys.stderr)
            index: int = typer.prompt("Number", value_proc=parse, err=True)
            return index

        return self._ask(prompt)

    def _ask(self, prompt: Callable[[], T]) -> T:
        self.view.close()
        # Inside a flow, asyncio defers Ctrl-C to the next await; the prompt needs it immediately.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return prompt()
        except typer.Abort:
            typer.echo(err=True)  # ^C was echoed on the prompt's line
            raise Declined from None
        finally:
            signal.signal(signal.SIGINT, before)

    def asks_permission(self, question: str) -> bool:
        """Ask, unless --yes; False if the user declines or there is no terminal."""
        try:
            self.confirm(question)
        except (Declined, Usage):
            return False
        return True


def _as_json(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_as_json(part) for part in answer]
    if is_dataclass(answer):
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(answer)
    return answer.as_json() if hasattr(answer, "as_json") else answer


class Declined(Exception):
    """The user declined a confirmation."""


class Interrupted(Exception):
    """Ctrl-C; Typer would exit silently on KeyboardInterrupt."""
