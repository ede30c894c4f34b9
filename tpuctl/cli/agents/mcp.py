"""The `mcp` command: serve commands as tools of the Model Context Protocol."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from tpuctl.cli.state import State
from tpuctl.errors import TpuctlError, Usage


def mcp(
    context: typer.Context,
    allow_spending: Annotated[
        bool,
        typer.Option(
            "--allow-spending",
            help="Also serve up, run, stop, and down, which start and end what costs money.",
        ),
    ] = False,
) -> None:
    """Serve tools to AI agents over the Model Context Protocol, on stdin and stdout.

    The tools are plan, status, jobs, logs, explain, check, and rehearse. They
    use the cloud and the stack file given here, and return what the commands
    print with --json. The agent starts the server itself: add this command to
    its configuration. Requires pip install 'tpuctl[mcp]'.

    Example: tpuctl mcp --cloud local
    """
    state: State = context.obj
    if state.json:
        raise Usage(
            "Conflicting options",
            "--json prints one result, and mcp speaks a protocol of its own",
            hint="Remove --json: the tools answer in JSON.",
            where="--json",
        )
    if find_spec("mcp") is None:
        raise TpuctlError(
            "MCP is not installed",
            "serving tools needs the package mcp",
            hint="Install it next to tpuctl, for example\n    pip install 'tpuctl[mcp]'",
        )
    from tpuctl.cli.agents.mcp_server import serve

    if sys.stdin.isatty():
        print(
            "Waiting for an agent on stdin. Agents start this command themselves: add it to\n"
            "their configuration. Press Ctrl-C to stop.",
            file=sys.stderr,
        )
    serve(state, allow_spending=allow_spending)
