"""The `export` commands: write a job for another engine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.help.command_classes import App
from tpuctl.cli.jobs.script_arguments import (
    AfterDashes,
    JobArguments,
    JobModule,
    JobPython,
    JobScript,
    NoCheck,
    parse_program,
)
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.flows.jobs.export import ExportedJobSet
    from tpuctl.view.responses.export import JobSet

app = App(
    help="Write a job for another engine.\n\nExample: tpuctl export jobset train.py > jobset.yaml",
    invoke_without_command=True,
)


def register(root: typer.Typer) -> None:
    app.command(cls=AfterDashes)(jobset)
    root.add_typer(app, name="export")


def jobset(
    context: typer.Context,
    script: JobScript = None,
    arguments: JobArguments = None,
    module: JobModule = None,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name of the JobSet (default: a new job id)."),
    ] = "",
    queue: Annotated[
        str,
        typer.Option("--queue", metavar="QUEUE", help='LocalQueue of Kueue; "" uses none.'),
    ] = "tpu",
    image: Annotated[
        str,
        typer.Option("--image", metavar="IMAGE", help="Container image with Python 3.8 or later."),
    ] = "python:3.12",
    service_account: Annotated[
        str,
        typer.Option("--service-account", metavar="NAME", help="Kubernetes service account."),
    ] = "tpuctl",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="New file to write (default: standard output)."),
    ] = None,
    no_upload: Annotated[
        bool,
        typer.Option("--no-upload", help="Do not upload the bundle; send no request."),
    ] = False,
    python: JobPython = "",
    no_check: NoCheck = False,
) -> None:
    """Write the job that `run` would start as a JobSet for Google Kubernetes Engine.

    The bundle is uploaded to the stack's bucket, from which the pods download it. Nothing is
    created in a cluster. See https://jobset.sigs.k8s.io.

    Example: tpuctl export jobset train.py -o jobset.yaml -- --steps 1000
    """
    from tpuctl.flows.ci.pipelines import require_new, write
    from tpuctl.jobs.jobset import JobSetSettings

    state: State = context.obj
    program, form, words = parse_program(context, script, module, arguments, "export jobset")
    if output is not None:
        require_new(output)  # before anything is uploaded
    settings = JobSetSettings(queue=queue, image=image, service_account=service_account)
    exported = state.wait_for(
        state.tpuctl().export_jobset(
            program,
            words,
            settings,
            name,
            form=form,
            check=not no_check,
            python=python,
            upload=not no_upload,
        )
    )
    if output is not None:
        write(output, exported.manifest)
    state.answer(lambda: _response(exported, output), lambda: _show(state, exported, output))


def _response(exported: ExportedJobSet, output: Path | None) -> JobSet:
    secret = {"name": exported.secret, "command": "\n".join(exported.secret_command)}
    return responses.export.JobSet.from_object(
        exported,
        file=str(output) if output is not None else None,
        secret=secret if exported.secret else None,
    )


def _show(state: State, exported: ExportedJobSet, output: Path | None) -> None:
    """The manifest on stdout, or the file and what to do next."""
    if output is None:
        print(exported.manifest, end="")
        return
    print(output)
    if exported.secret:
        lines = [f"\nOnce, create the secret {exported.secret}, with bash:"]
        state.note("\n".join([*lines, *(f"    {line}" for line in exported.secret_command)]))
    state.suggest(f"kubectl apply -f {shlex.quote(str(output))}")
