"""Serve the dashboard until Ctrl-C."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tpuctl.cli import responses
from tpuctl.cli.state import State

FIRST_PORT = 8780


def dashboard(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help=f"Port of this machine (default: {FIRST_PORT}, or the next free one).",
            show_default=False,
        ),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the URL; do not open a browser.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=1, help="Seconds between refreshes.")
    ] = 5.0,
) -> None:
    """Show the stack, its jobs, curves, log, and cost on a live page in the browser.

    The page is for this machine only, and needs the token in the printed URL. The cloud is queried
    only while the page is visible. Works after the machines are deleted. Press Ctrl-C to stop, with
    exit code 0.

    Example: tpuctl dashboard
    """
    from tpuctl.flows.signals import until_interrupted
    from tpuctl.local_ports import listen

    state: State = context.obj
    tpuctl = state.tpuctl()

    def typed(command: str) -> str:
        return f"{state.command_prefix} {command}"

    hint = "Pass another port, or none to use the next free one:\n    tpuctl dashboard"
    with listen(port, first=FIRST_PORT, where="--port", hint=hint) as listener:

        async def work() -> None:
            import asyncio

            from tpuctl.view.dashboard.page import document
            from tpuctl.view.dashboard.server import serve_dashboard

            source = tpuctl.dashboard(interval)
            first = await source.state()  # raises what prevents all of them
            state.jobs += [job.record.id for job in first.snapshot.jobs]

            async def load(job: str) -> dict[str, Any]:
                page = document(await source.state(job), typed, is_free=state.is_free)
                return {**page, "seconds": interval}

            async with serve_dashboard(listener, load) as url:
                await _announce(state, url, opens_browser=not no_browser and not state.json)
                state.announce("Press Ctrl-C to stop.")
                await asyncio.Event().wait()

        state.wait_for(until_interrupted(work()))


async def _announce(state: State, url: str, *, opens_browser: bool) -> None:
    from tpuctl.cli.browser import open_page
    from tpuctl.cloud.threads import in_thread
    from tpuctl.model.events import PageServed

    state.record(lambda: responses.machines.Dashboard(url=url))
    state.view.on(PageServed(url))
    if opens_browser and not await in_thread(open_page, url):
        state.announce("No browser was found. Open the URL above.")
