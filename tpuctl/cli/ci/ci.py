"""The `ci` commands: write pipelines that train on a TPU, and the commands of their steps."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import responses
from tpuctl.cli.ci.steps import follow, start, summary
from tpuctl.cli.help.command_classes import App
from tpuctl.cli.jobs.script_arguments import AFTER_DASHES, AfterDashes, Module, ScriptArguments
from tpuctl.cli.state import State
from tpuctl.errors import Usage
from tpuctl.files import exists

if TYPE_CHECKING:
    from tpuctl.flows.ci.pipeline_setup import SetupStep
    from tpuctl.flows.ci.pipelines import Pipeline
    from tpuctl.view.responses.base import Response

WRITE, STEPS = "Write a pipeline", "Used in its steps"

ci_app = App(
    help="Write CI pipelines that check, train on a TPU, and always clean up."
    "\n\nExample: tpuctl ci github",
    invoke_without_command=True,
)

# Help and options that do not apply, for each CI system.
PIPELINES = {
    "github": (
        """Write a GitHub Actions workflow and print the one-time setup commands.

        The workflow trains when started manually, and with --on-push or
        --schedule; pull requests are only checked. Existing files are kept.

        Example: tpuctl ci github train.py -- --steps 1000
        """,
        (),
    ),
    "gitlab": (
        """Write a GitLab CI pipeline and print the one-time setup commands.

        The pipeline trains when started manually or by a schedule, and with
        --on-push; merge requests are only checked. Existing files are kept: next
        to an existing .gitlab-ci.yml, a file to include is written.

        Example: tpuctl ci gitlab train.py -- --steps 1000
        """,
        ("schedule",),
    ),
    "cloudbuild": (
        """Write a Cloud Build configuration and print the one-time setup commands.

        Existing files are kept.

        Example: tpuctl ci cloudbuild train.py -- --steps 1000
        """,
        ("provider", "schedule"),
    ),
}


class PipelineCommand(AfterDashes):
    """A command with only the options that apply to the CI system."""

    def __init__(self, name: str, *, params: list[Any], **settings: Any) -> None:
        _, omitted = PIPELINES[name]
        params = [parameter for parameter in params if parameter.name not in omitted]
        super().__init__(name, params=params, **settings)


def register(app: typer.Typer) -> None:
    ci_app.callback()(listing)
    for name, (text, _) in PIPELINES.items():
        ci_app.command(name, cls=PipelineCommand, help=text, rich_help_panel=WRITE)(write_pipeline)
    ci_app.command(cls=AfterDashes, rich_help_panel=STEPS)(start)
    ci_app.command(rich_help_panel=STEPS)(follow)
    ci_app.command(rich_help_panel=STEPS)(summary)
    app.add_typer(ci_app, name="ci")


def listing(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from tpuctl.flows.ci.pipelines import SYSTEMS
    from tpuctl.view.terminal.tables import print_table

    state: State = context.obj
    rows = [
        (f"{state.command_prefix} ci {system.name}", system.title, system.file)
        for system in SYSTEMS.values()
    ]

    def show() -> None:
        print_table(("command", "for", "writes"), rows)
        state.suggest(rows[0][0])

    state.answer(
        lambda: [responses.ci.System.model_validate(system) for system in SYSTEMS.values()], show
    )


def write_pipeline(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCRIPT]", help="Script to train with (default: detected).", show_default=False
        ),
    ] = None,
    arguments: ScriptArguments = None,
    module: Module = None,
    account: Annotated[
        str,
        typer.Option("--service-account", metavar="EMAIL", help="Service account of the pipeline."),
    ] = "",
    provider: Annotated[
        str,
        typer.Option(
            "--provider", metavar="NAME", help="Workload identity provider, with its full name."
        ),
    ] = "",
    on_push: Annotated[
        str,
        typer.Option("--on-push", metavar="BRANCH", help="Also train on each push to this branch."),
    ] = "",
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", metavar="CRON", help='Also train at these times, in UTC: "0 3 * * 1".'
        ),
    ] = "",
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            metavar="N",
            help="Limit of the job (default: limits.max_hours, or 4).",
            min=0,
        ),
    ] = None,
    install: Annotated[
        str,
        typer.Option(
            "--install",
            metavar="REQUIREMENT",
            help="What pip installs (default: this tpuctl version).",
        ),
    ] = "",
    hash_: Annotated[
        str,
        typer.Option("--hash", metavar="sha256:…", help="SHA-256 of the wheel; pip verifies it."),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write (default: the CI system's)."),
    ] = None,
    to_stdout: Annotated[
        bool, typer.Option("--print", help="Print to stdout instead of writing a file.")
    ] = False,
) -> None:
    from tpuctl.flows.ci.git_checkout import checkout_of
    from tpuctl.flows.ci.pipeline_setup import setup_steps
    from tpuctl.flows.ci.pipelines import SYSTEMS, PipelineOptions, output_path, render, write

    state: State = context.obj
    name = context.info_name or ""
    words = _run_arguments(context, script, arguments, module)
    options = PipelineOptions(words, account, provider, on_push, schedule, hours, install, hash_)
    if to_stdout and output is not None:
        raise Usage(
            "Conflicting options",
            "--print writes no file, --output names one",
            hint="Remove one of them.",
            where="--print",
        )
    system, checkout = SYSTEMS[name], checkout_of(Path())
    file = checkout.root / system.file if to_stdout else output_path(system, checkout, output)
    main = checkout.root / system.file
    is_apart = name == "gitlab" and file.resolve() != main.resolve()
    pipeline = render(system, state.stack_file, options, checkout, is_included=is_apart)
    shown_path = _display_path(file)
    steps = setup_steps(pipeline, checkout, options, shown_path, state.command_prefix)
    _warn_without_limits(state, pipeline)
    if not (checkout.root / ".git").exists():
        _warn_without_repository(state, "" if to_stdout else shown_path)

    def answer() -> Response:
        return responses.ci.Pipeline.from_object(
            pipeline, file=None if to_stdout else str(file), setup=steps
        )

    if to_stdout:
        state.answer(answer, lambda: print(pipeline.text, end=""))
        return
    write(file, pipeline.text)
    include = _include_path(file, checkout.root) if is_apart else ""
    added = [_display_path(main), shown_path] if is_apart else [shown_path]
    state.answer(answer, lambda: _show(state, pipeline, steps, shown_path, include, added))


def _run_arguments(
    context: typer.Context, script: str | None, arguments: list[str] | None, module: str | None
) -> tuple[str, ...]:
    """The arguments of `tpuctl run`; empty if no script is named."""
    script_args = [*(arguments or ()), *context.meta[AFTER_DASHES]]
    if module is not None:
        head = ["-m", module]
        script_args = [*([script] if script is not None else []), *script_args]
    elif script is not None:
        if not exists(script):
            raise Usage(
                "Script not found",
                f"{script} does not exist",
                where="SCRIPT",
                hint="Paths are relative to the current folder. Pass an existing script:\n"
                "    tpuctl ci github SCRIPT",
            )
        head = [script]
    elif script_args:
        head = []
    else:
        return ()
    return (*head, "--", *script_args) if script_args else tuple(head)


def _show(
    state: State,
    pipeline: Pipeline,
    steps: list[SetupStep],
    file: str,
    include: str,
    added: list[str],
) -> None:
    print(file)
    if include:
        state.note(
            "\nInclude it in .gitlab-ci.yml and add its stages:\n"
            f"    include: [{{local: {include}}}]\n    stages: [tpu-check, tpu-train, tpu-down]"
        )
    for placeholder, meaning in pipeline.placeholders.items():
        state.note(f"\nReplace {placeholder}: {meaning}.")
    state.note("\nOne-time setup, with gcloud, as a project administrator:")
    for step in steps:
        state.note("\n".join([f"\n    # {step.title}", *(f"    {line}" for line in step.commands)]))
    state.suggest(f"git add {shlex.join(added)}")


def _display_path(file: Path) -> str:
    """The path relative to the current folder."""
    import os

    return Path(os.path.relpath(file.absolute(), Path.cwd())).as_posix()


def _include_path(file: Path, root: Path) -> str:
    """The path relative to the repository root, for GitLab's `include: local`."""
    whole = file.resolve()
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root) else _display_path(file)


def _warn_without_limits(state: State, pipeline: Pipeline) -> None:
    from tpuctl.errors import Diagnostic

    if not pipeline.stack.has_limits:
        detail = "if the pipeline itself fails, the TPU stays until you delete it"
        hint = "Set a limit in the stack file; the machines enforce it:\n    limits: {idle: 30m}"
        state.warn(Diagnostic("No limits", detail, hint))


def _warn_without_repository(state: State, written: str) -> None:
    """`written` is the pipeline's file, which a second run does not overwrite."""
    from tpuctl.errors import Diagnostic

    detail = "no .git in this folder or above; the pipeline assumes this folder is the root"
    hint = "Create a repository:\n    git init"
    if written:
        hint += (
            f"\nIf a parent folder is the root, delete {written}, create the repository "
            "there, and run this command again."
        )
    state.warn(Diagnostic("Not a repository", detail, hint))
