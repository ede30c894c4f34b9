"""The program's entry point: runs a command and maps errors to exit codes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from tpuctl.cli import responses
from tpuctl.cli.app import command_line
from tpuctl.cli.help.suggestions import usage_diagnostic
from tpuctl.cli.parameters.arguments import require_text
from tpuctl.cli.state import AFTER_INTERRUPT, Declined, Interrupted, State
from tpuctl.errors import Diagnostic, TpuctlError, Usage
from tpuctl.google_imports import disable_async_rest
from tpuctl.user_account import name_user
from tpuctl.view.terminal.safe_stream import safe_streams

INTERRUPTED = 130
BUG = 70
FOLDERS = ("TPUCTL_LOCAL_HOME", "TPUCTL_CONFIG_HOME", "TPUCTL_IMAGE_CACHE")
MAX_PATH_SHOWN = 80  # characters
FALSE_VALUES = ("", "0", "false", "False", "no", "off")
PAGES = {"--help", "-h", "--version"}
ENVIRONMENT_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
ENVIRONMENT_ERRORS |= {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EMFILE}


def run(arguments: Sequence[str]) -> int:
    """Run a command; exit codes are listed in docs/reference/exit-codes.md."""
    all_arguments = list(arguments)
    own_arguments = (
        all_arguments[: all_arguments.index("--")] if "--" in all_arguments else all_arguments
    )
    wants_json = "--json" in own_arguments or os.environ.get("TPUCTL_JSON", "") not in FALSE_VALUES
    state = State(json=wants_json, arguments=all_arguments)
    with safe_streams():
        try:
            with (
                _capture_page(state)
                if wants_json and PAGES & {*own_arguments}
                else contextlib.nullcontext()
            ):
                exit_code = execute(all_arguments, state)
        except BrokenPipeError:  # the reader closed the pipe
            _silence_stdout()
            return 0
        if state.json and not _print_envelope(state, exit_code):
            return exit_code or TpuctlError.exit_code
        return exit_code


def execute(arguments: Sequence[str], state: State) -> int:
    """Run a command with this state, and show its errors in the state's view.

    Raises BrokenPipeError only.
    """
    disable_async_rest()
    name_user()
    exit_code, failure = BUG, None  # type: int, Exception | None
    try:
        _require_folder()
        require_text(arguments)
        code = command_line().main(
            list(arguments), standalone_mode=False, obj=state, prog_name="tpuctl"
        )
        exit_code = code if isinstance(code, int) else 0
    except TpuctlError as error:
        exit_code, failure = error.exit_code, error
        state.problems(_with_causes(error) if state.verbose else error.diagnostics)
    except typer.TyperException as error:
        exit_code = Usage.exit_code
        state.problems([usage_diagnostic(error)])
    except (Declined, typer.Abort):
        exit_code = INTERRUPTED
        state.problems(
            [
                Diagnostic(
                    "Not confirmed",
                    "nothing was changed",
                    hint="Repeat the command to be asked again, or pass --yes.",
                )
            ]
        )
    except (Interrupted, KeyboardInterrupt):
        exit_code = INTERRUPTED
        left = state.after_interrupt or AFTER_INTERRUPT.get(state.command, ())
        state.problems([Diagnostic("Interrupted", *left)])
    except BrokenPipeError:
        exit_code = 0
        raise
    except OSError as error:
        exit_code = BUG if error.errno not in ENVIRONMENT_ERRORS else TpuctlError.exit_code
        if _is_no_path(error):
            exit_code = Usage.exit_code
        failure = error
        state.problems([_bug(error, state.verbose) if exit_code == BUG else _file_problem(error)])
    except Exception as error:
        exit_code, failure = BUG, error
        state.problems([_bug(error, state.verbose)])
    finally:
        state.close_view()
        _remember_names(state)
        _record_end(state, exit_code, failure)
    return exit_code


@contextlib.contextmanager
def _capture_page(state: State) -> Iterator[None]:
    """Capture the output of --help and --version as the envelope's data."""
    with contextlib.redirect_stdout(io.StringIO()) as page:
        yield
    state.record(lambda: responses.catalog.HelpText(text=page.getvalue().rstrip("\n")))


def _remember_names(state: State) -> None:
    """Remember stack and job names for tab completion."""
    if state.clients:
        from tpuctl.cli.completion.name_history import remember

        remember(state.stacks, state.jobs)


def _record_end(state: State, exit_code: int, failure: Exception | None) -> None:
    """Record how the command ended, for bug reports and `explain`."""
    if state.recorder is not None:
        import traceback

        state.recorder.end(
            state.command,
            exit_code,
            stacks=state.stacks,
            jobs=state.jobs,
            diagnostics=state.diagnostics,
            traceback="" if failure is None else "".join(traceback.format_exception(failure)),
        )


def _require_folder() -> None:
    try:
        Path.cwd()
    except OSError as error:
        detail = "the current folder no longer exists"
        raise Usage("No current folder", detail, hint="Change to another folder.") from error


def _with_causes(error: TpuctlError) -> list[Diagnostic]:
    """The error's diagnostics, with the chain of causes added to the first."""
    first, *others = error.diagnostics
    lines, cause, met = [first.detail], error.__cause__, {id(error)}
    while cause is not None and id(cause) not in met:
        met.add(id(cause))
        lines.append(f"from {type(cause).__module__}.{type(cause).__qualname__}: {cause}")
        details = getattr(cause, "details", None)
        lines += [f"    {detail}" for detail in details] if isinstance(details, list) else []
        cause = cause.__cause__
    return [replace(first, detail="\n".join(filter(None, lines))), *others]


def _bug(error: Exception, verbose: bool) -> Diagnostic:
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    detail = f"{type(error).__name__}: {error} (at {Path(where.filename).name}:{where.lineno})"
    if verbose:
        detail = "".join(traceback.format_exception(error)).rstrip()
    hint = "This is a bug in tpuctl. Please report it, with the archive that this command writes:\n"
    hint += "    tpuctl debug-dump"
    return Diagnostic("Internal error", detail, hint)


def _is_no_path(error: OSError) -> bool:
    """Whether a long text was given in place of a path, other than one of tpuctl's folders."""
    folders = tuple(os.environ[name] for name in FOLDERS if os.environ.get(name))
    return error.errno == errno.ENAMETOOLONG and not str(error.filename).startswith(folders)


def _file_problem(error: OSError) -> Diagnostic:
    """A file system error that is no bug, such as a full disk."""
    path = str(error.filename or "")
    if _is_no_path(error):
        detail = f"{path[:MAX_PATH_SHOWN]}…" if len(path) > MAX_PATH_SHOWN else path
        hint = "The path of a file or folder is expected there."
        return Diagnostic("Not the path of a file or folder", f"{detail} is too long", hint)
    detail = ": ".join(part for part in (path, str(error.strerror)) if part)
    hint = f"To use other folders, set {', '.join(FOLDERS[:-1])} or {FOLDERS[-1]}."
    return Diagnostic("Cannot access file or folder", detail, hint)


def answer(state: State, exit_code: int) -> str:
    """The envelope of a command that ended with this exit code, as JSON."""
    import json

    from tpuctl.model.text.terminal_text import escape_control_characters
    from tpuctl.view.progress.json_lines import JsonLines, envelope

    view = state.view
    diagnostics = view.diagnostics if isinstance(view, JsonLines) else []
    fields = envelope(state.command, exit_code, state.data, diagnostics)
    text = escape_control_characters(json.dumps(fields, ensure_ascii=False, default=str))
    if state.is_yaml:
        import yaml

        text = yaml.safe_dump(json.loads(text), allow_unicode=True, sort_keys=False).rstrip("\n")
    return text


def _print_envelope(state: State, exit_code: int) -> bool:
    """Returns whether it could be printed."""
    try:
        print(answer(state, exit_code), flush=True)
    except BrokenPipeError:  # the reader closed the pipe
        _silence_stdout()
    except OSError as error:
        print(f"error: cannot write the result: {error.strerror}", file=sys.stderr)
        _silence_stdout()
        return False
    return True


def _silence_stdout() -> None:
    """Keep the interpreter from failing again when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
