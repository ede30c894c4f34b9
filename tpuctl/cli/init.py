"""The command `init`: a stack file and a job to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli.app import State

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Stack")(init)


def init(
    context: typer.Context,
    template: Annotated[
        str, typer.Argument(help="A template; --list shows them.")
    ] = "bert-pretraining",
    project: Annotated[
        str, typer.Option("--project", help="The project's id; made up for the local cloud.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="The stack's name.")] = "",
    folder: Annotated[Path, typer.Option("--folder", help="Where to write.")] = Path(),
    listing: Annotated[bool, typer.Option("--list", help="Show the templates.")] = False,
) -> None:
    """Write a stack file and a job to start from. Nothing is overwritten.

    Example: tpuctl init bert-pretraining --project my-project
    """
    state: State = context.obj
    from tpuctl.flows import scaffold

    if listing:
        known = scaffold.list_templates()
        state.answer(known, lambda: print("\n".join(known)))
        return
    written = scaffold.write(
        template, folder, name=name, project=project, local=state.cloud.value == "local"
    )

    def show() -> None:
        print(written.stack_file)
        if written.folder is not None:
            print(f"{written.folder}/  {len(written.files) - 1} files")
        typed = state.typed
        if written.stack_file != state.stack_file and "--stack-file" not in typed:
            typed += f" --stack-file {shlex.quote(str(written.stack_file))}"
        print(f"\nNext:\n    {typed} up\n    {typed} run {written.script}")

    state.answer({"files": [str(path) for path in written.files]}, show)
