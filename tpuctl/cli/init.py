"""The `init` command: write a stack file and a job from a template, or a job alone."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.completion.candidates import complete_templates
from tpuctl.cli.state import State
from tpuctl.units import counted

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Stack")(init)


def init(
    context: typer.Context,
    template: Annotated[
        str,
        typer.Argument(help="Template; --list shows all.", autocompletion=complete_templates),
    ] = "bert-pretraining",
    project: Annotated[
        str, typer.Option("--project", help="Project id (generated for the local cloud).")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Stack name.")] = "",
    folder: Annotated[Path, typer.Option("--folder", help="Folder to write to.")] = Path(),
    listing: Annotated[bool, typer.Option("--list", help="List the templates.")] = False,
) -> None:
    """Write a stack file and a job from a template. Existing files are kept.

    Some templates are a job alone, to add to an existing stack.

    Example: tpuctl init bert-pretraining --project my-project
    """
    state: State = context.obj
    from tpuctl.flows.init import describe_templates, write

    if listing:
        templates = describe_templates()

        def show_list() -> None:
            from tpuctl.view.tables import print_facts

            print_facts(templates.items())
            state.suggest(f"{state.cloud_prefix} init TEMPLATE")

        state.answer(lambda: list(templates), show_list)
        return
    written = write(
        template, folder, name=name, project=project, local=state.cloud.value == "local"
    )

    def show() -> None:
        if written.stack_file is not None:
            print(written.stack_file)
        if written.folder is not None:
            count = sum(path != written.stack_file for path in written.files)
            print(f"{written.folder}/  {counted(count, 'file')}")
        if written.stack_file is None:
            commands = [written.command]
        else:
            typed = state.command_prefix
            if written.stack_file != state.stack_file and "--stack-file" not in typed:
                typed += f" --stack-file {shlex.quote(str(written.stack_file))}"
            suggested = ("doctor", "up", f"run {written.script}", "down")
            commands = [f"{typed} {command}" for command in suggested]
        state.note("\n".join(["", "Next:", *(f"    {command}" for command in commands)]))

    state.answer(lambda: responses.stacks.WrittenFiles(files=written.files), show)
