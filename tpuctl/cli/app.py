"""The root of the command line: global options, wiring, exit codes, the one `except`."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from tpuctl import __version__
from tpuctl.cli.arguments import hoist, require_text
from tpuctl.errors import Diagnostic, TpuctlError, Usage

if TYPE_CHECKING:
    from tpuctl.api import Tpuctl
    from tpuctl.model.events import Event
    from tpuctl.view import View

__all__ = ["AFTER_INTERRUPT", "CloudName", "Interrupted", "State", "app", "register", "run"]

T = TypeVar("T")
INTERRUPTED = 130
BUG = 70
# A command in a hint that speaks to the stack's cloud, which the others do not.
COMMAND = re.compile(r"(?m)^(\s+)tpuctl (?!--|local\b|types\b|zones\b|runtimes\b|prices\b)")
NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
NOT_OURS |= {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EMFILE}
REPEAT = "Repeat the command to go on where it stopped."
AFTER_INTERRUPT = {
    "up": (
        "the cloud goes on with what it was asked for, and charges for what it makes; a request "
        "in a queue goes on waiting",
        f"{REPEAT} Or take it all away with\n    tpuctl down",
    ),
    "down": (
        "the cloud goes on with what it was asked for; the rest is still there and charged",
        REPEAT,
    ),
    "run": ("no job was left running", "To be sure, see\n    tpuctl jobs"),
    "cp": ("files that were whole are in their places, others are not", "Repeat the command."),
    "wait": ("the job goes on", "Wait again with\n    tpuctl wait"),
    "stop": ("the job may be going on", REPEAT),
}


class CloudName(StrEnum):
    google = "google"
    local = "local"


@dataclass
class State:
    """What the global options say, and the answer of the command that ran."""

    command: str = ""
    stack_file: Path = Path("tpuctl.yaml")
    cloud: CloudName = CloudName.google
    json: bool = False
    events: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    yes: bool = False
    data: Any = None
    made: list[Tpuctl] = field(default_factory=list, repr=False)  # the stacks it spoke of
    after_interrupt: tuple[str, ...] = ()  # what Ctrl-C leaves, where that is not the command's
    _view: View | None = field(default=None, repr=False)

    @property
    def view(self) -> View:
        if self._view is None:
            from tpuctl.view import choose

            self._view = choose(
                json=self.json, events=self.events, quiet=self.quiet, no_color=self.no_color
            )
        return self._view

    def close_view(self) -> None:
        """Close the view if there is one: help needs none, and is quicker without."""
        if self._view is not None:
            self._view.close()

    @property
    def typed(self) -> str:
        """How the user would start another command that speaks to the same cloud and stack."""
        parts = [self.typed_anywhere]
        if self.stack_file != Path("tpuctl.yaml") and "TPUCTL_STACK_FILE" not in os.environ:
            parts.append(f"--stack-file {shlex.quote(str(self.stack_file))}")
        return " ".join(parts)

    @property
    def typed_anywhere(self) -> str:
        """Like `typed`, of any stack of the same cloud."""
        is_told = self.cloud is CloudName.local and os.environ.get("TPUCTL_CLOUD") != "local"
        return "tpuctl --cloud local" if is_told else "tpuctl"

    def as_typed(self, one: Diagnostic) -> Diagnostic:
        """With the commands in its hint as the user would have to type them."""
        return replace(one, hint=self._typed_in(one.hint))

    def _typed_in(self, text: str) -> str:
        return COMMAND.sub(lambda found: f"{found[1]}{self.typed} ", text)

    def problems(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.view.problems([self.as_typed(one) for one in diagnostics])

    def _tell(self, event: Event) -> None:
        from tpuctl.model.events import Note, Warned

        if isinstance(event, Warned):
            event = replace(event, diagnostic=self.as_typed(event.diagnostic))
        elif isinstance(event, Note):
            event = Note(self._typed_in(event.text))
        self.view.on(event)

    def tpuctl(self, name: str = "", project: str = "") -> Tpuctl:
        """The stack that the options name, else these two, with events going to the view."""
        from tpuctl.api import Tpuctl

        made = Tpuctl(
            self.stack_file, name=name, project=project, cloud=self.cloud.value, emit=self._tell
        )
        self.made.append(made)
        made.names_workers = not (self.json and self.events)  # events say it themselves
        return made

    def answer(self, data: Any, show: Callable[[], None] | None = None) -> None:
        """The result: kept for the envelope, or shown on stdout."""
        self.data = data
        self.close_view()
        if not self.json and show is not None:
            show()

    def wait_for(self, work: Awaitable[T]) -> T:
        """Run a flow to its end."""
        import asyncio

        async def main() -> T:
            return await work

        return asyncio.run(main())

    def confirm(self, question: str, *, default: bool = True) -> None:
        """Ask, unless --yes. Raises Usage where nobody can answer, Declined on a no."""
        if self.yes:
            return
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Usage(
                "Not confirmed",
                f"{question} Nobody can be asked without a terminal",
                hint="Say yes beforehand with --yes.",
                where="--yes",
            )
        self.view.close()
        # Inside a flow asyncio keeps Ctrl-C for the next await: the question would not hear it.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            if not typer.confirm(question, default=default, err=True):
                raise Declined
        except typer.Abort:
            typer.echo(err=True)  # ^C stands on the question's line
            raise Declined from None
        finally:
            signal.signal(signal.SIGINT, before)


class Declined(Exception):
    """The answer to a question was no."""


class Interrupted(Exception):
    """Ctrl-C, past typer, which would end the program without a word."""


class _Root(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


app = typer.Typer(
    name="tpuctl",
    cls=_Root,
    help="From an empty Google Cloud project to a model training on a TPU, and back to zero cost.",
    epilog="Options may stand anywhere before --, or be set as TPUCTL_CLOUD=local and so on. "
    "First time? No account needed: tpuctl --cloud local init, then up, run, down.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tpuctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    stack_file: Annotated[
        Path,
        typer.Option(
            "--stack-file", envvar="TPUCTL_STACK_FILE", show_envvar=False, help="The stack file."
        ),
    ] = Path("tpuctl.yaml"),
    cloud: Annotated[
        CloudName,
        typer.Option(
            "--cloud", envvar="TPUCTL_CLOUD", show_envvar=False, help="Which cloud to speak to."
        ),
    ] = CloudName.google,
    json: Annotated[
        bool,
        typer.Option(
            "--json", envvar="TPUCTL_JSON", show_envvar=False, help="Answer in one JSON envelope."
        ),
    ] = False,
    events: Annotated[
        bool,
        typer.Option(
            "--events",
            envvar="TPUCTL_EVENTS",
            show_envvar=False,
            help="With --json: events as JSON lines.",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", envvar="TPUCTL_QUIET", show_envvar=False, help="Tell only problems."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            envvar="TPUCTL_VERBOSE",
            show_envvar=False,
            help="Tracebacks of bugs.",
        ),
    ] = False,
    no_color: Annotated[
        bool,
        typer.Option("--no-color", envvar="TPUCTL_NO_COLOR", show_envvar=False, help="No colours."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", envvar="TPUCTL_YES", show_envvar=False, help="Do not ask."),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    state: State = context.obj
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    state.command = context.invoked_subcommand
    state.stack_file = stack_file
    state.cloud = cloud
    state.json = json
    state.events = events
    state.quiet = quiet
    state.verbose = verbose
    state.no_color = no_color
    state.yes = yes


@cache
def register() -> None:
    """Make every command known. They import what they need when they run."""
    from tpuctl.cli import (
        catalog,
        check,
        ci,
        doctor,
        explain,
        init,
        job,
        local,
        machine,
        rehearse,
        report,
        run,
        stack,
    )

    for module in (
        init,
        doctor,
        stack,
        check,
        rehearse,
        run,
        job,
        explain,
        report,
        machine,
        catalog,
        ci,
    ):
        module.register(app)
    app.add_typer(local.app, name="local", rich_help_panel="Local cloud")


def run(arguments: Sequence[str]) -> int:
    """The whole program; the exit code is design's table of exit codes."""
    ours = list(arguments)
    state = State(json="--json" in ours[: ours.index("--") if "--" in ours else None])
    register()
    try:
        _require_folder()
        require_text(ours)
        code = app(hoist(arguments), standalone_mode=False, obj=state, prog_name="tpuctl")
        exit_code = code if isinstance(code, int) else 0
    except TpuctlError as error:
        exit_code = error.exit_code
        state.problems(error.diagnostics)
    except typer.TyperException as error:
        exit_code = Usage.exit_code
        state.problems([_usage(error, state)])
    except (Declined, typer.Abort):
        exit_code = INTERRUPTED
        state.problems([Diagnostic("Not confirmed", "nothing was changed")])
    except (Interrupted, KeyboardInterrupt):
        exit_code = INTERRUPTED
        left = state.after_interrupt or AFTER_INTERRUPT.get(state.command, ())
        state.problems([Diagnostic("Interrupted", *left)])
    except BrokenPipeError:  # the reader of our output went away
        _silence_stdout()
        return 0
    except OSError as error:
        exit_code = BUG if error.errno not in NOT_OURS else TpuctlError.exit_code
        state.problems([_bug(error, state.verbose) if exit_code == BUG else _file_problem(error)])
    except Exception as error:
        exit_code = BUG
        state.problems([_bug(error, state.verbose)])
    finally:
        state.close_view()
        _note_names(state)
    if state.json and not _print_envelope(state, exit_code):
        return exit_code or TpuctlError.exit_code
    return exit_code


def _note_names(state: State) -> None:
    """Keep for completion what the command came across."""
    if state.made:
        from tpuctl.cli.seen import note

        note(state)


def _require_folder() -> None:
    try:
        Path.cwd()
    except OSError as error:
        detail = "the folder you are in does not exist any more"
        raise Usage("No current folder", detail, hint="Change to another one.") from error


def _usage(error: typer.TyperException, state: State) -> Diagnostic:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tpuctl"
    if context is not None and context.parent is not None and not state.command:
        state.command = path.partition(" ")[2]  # nothing ran that would have noted it
    hint = f"See how it is used:\n    {path} --help"
    if path == "tpuctl run":
        hint = f"What is the script's own goes after --\n    tpuctl run SCRIPT -- ARGUMENTS\n{hint}"
    detail = error.format_message().replace("Value error, ", "")
    return Diagnostic("Wrong usage", detail, hint)


def _bug(error: Exception, verbose: bool) -> Diagnostic:
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    detail = f"{type(error).__name__}: {error} (at {Path(where.filename).name}:{where.lineno})"
    if verbose:
        detail = "".join(traceback.format_exception(error)).rstrip()
    hint = "This is a bug in tpuctl: please report it, with what --verbose adds to this."
    return Diagnostic("Internal error", detail, hint)


def _file_problem(error: OSError) -> Diagnostic:
    """A disk or folder that does not let us: nothing that a report would help with."""
    path = error.filename if isinstance(error.filename, str) else ""
    detail = ": ".join(part for part in (path, str(error.strerror)) if part)
    hint = "TPUCTL_LOCAL_HOME, TPUCTL_CONFIG_HOME and TPUCTL_IMAGE_CACHE name other folders."
    return Diagnostic("File or folder cannot be used", detail, hint)


def _print_envelope(state: State, exit_code: int) -> bool:
    """Whether it could be printed."""
    import json

    from tpuctl.view import Machine, envelope

    view = state.view
    diagnostics = view.diagnostics if isinstance(view, Machine) else []
    answer = envelope(state.command, exit_code, state.data, diagnostics)
    try:
        print(json.dumps(answer, ensure_ascii=False, default=str), flush=True)
    except BrokenPipeError:  # its reader wanted no more
        _silence_stdout()
    except OSError as error:
        print(f"error: the answer cannot be written: {error.strerror}", file=sys.stderr)
        _silence_stdout()
        return False
    return True


def _silence_stdout() -> None:
    """Keep the interpreter from failing again when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
