"""Command for notebooks on a stack's machines: notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.jobs.script_arguments import JobPython
from tpuctl.cli.state import Interrupted, State

if TYPE_CHECKING:
    from tpuctl.flows.jobs.notebook import OpenNotebook


def notebook(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Folder to upload, with code and requirements (default: the stack file's).",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help="Local port (default: 8888, or the next free one)."
        ),
    ] = None,
    browser: Annotated[
        bool,
        typer.Option(
            "--browser/--no-browser",
            show_default=False,
            help="Open the browser (default), or only print the URL.",
        ),
    ] = True,
    python: JobPython = "",
) -> None:
    """Open JupyterLab on worker 0, in the environment of the stack's jobs.

    It keeps running when you press Ctrl-C or lose the connection; the same command reconnects, and
    `tpuctl stop` ends it. A notebook whose kernels are idle counts as idle (`limits.idle`). Files
    in ~/notebooks are saved to the bucket.

    Example: tpuctl notebook
    """
    from tpuctl.cli.browser import open_page
    from tpuctl.flows.signals import until_interrupted
    from tpuctl.model.events import Note

    state: State = context.obj
    tpuctl = state.tpuctl()
    opened: list[OpenNotebook] = []

    async def work() -> None:
        async with tpuctl.notebook(folder, port, python=python) as server:
            opened.append(server)
            state.record(lambda: responses.machines.Notebook.model_validate(server))
            tpuctl.emit(
                Note(
                    f"JupyterLab runs as job {server.job}. Files in ~/notebooks are "
                    f"saved to {server.files}."
                )
            )
            if not state.json:
                print(server.url, flush=True)
                if browser and not open_page(server.url):
                    tpuctl.emit(Note("No browser was found. Open this address."))
            tpuctl.emit(Note("Press Ctrl-C to disconnect."))
            await server.wait()

    state.wait_for(until_interrupted(work()))
    if not opened:
        raise Interrupted
    idle = tpuctl.stack.file.limits.idle
    until = f" until no kernel was active for {idle}" if idle is not None else ""
    tpuctl.emit(
        Note(
            f"The notebook goes on; the TPU is charged{until}. To reconnect, or to end it:\n"
            f"    tpuctl notebook\n    tpuctl stop {opened[0].job}"
        )
    )
