"""Commands as tools of the Model Context Protocol, with the official SDK.

A tool runs its command in this process, with `--json`, and answers with its envelope: how a
command's options become a result is defined there alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import mcp.types as protocol
from jsonschema import Draft202012Validator
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from tpuctl.cli.app import command_line
from tpuctl.cli.help.commands import COMMANDS, Effect
from tpuctl.cli.help.help_pages import EXAMPLE
from tpuctl.cli.main import INTERRUPTED, answer, execute
from tpuctl.cli.state import State
from tpuctl.errors import Diagnostic
from tpuctl.model.events import Event, LogChunk, StepFinished, StepProgress, StepStarted
from tpuctl.version import __version__
from tpuctl.view.progress.json_lines import JsonLines

T = TypeVar("T")

MAX_CALLS = 256  # at the same time; a thread is started only if all others are busy
CANCEL_SECONDS = 5.0  # in which a canceled command may end what it has started

# Each tool is a command of this name, with these of its arguments and options.
TOOLS: Mapping[str, Sequence[str]] = {
    "plan": (),
    "status": ("stack", "project"),
    "jobs": (),
    "logs": ("job", "tail", "since", "grep", "attempt", "all_workers"),
    "explain": ("job", "error"),
    "check": ("scripts", "module", "select", "ignore", "explain"),
    "rehearse": (
        *("script", "arguments", "module", "steps", "timeout", "sample"),
        *("compile", "type", "batch"),
    ),
    "up": (),
    "run": ("script", "arguments", "module", "timeout"),
    "stop": ("job",),
    "down": (),
}
# What a tool always passes: there are no prompts, and a call must not last as long as a job.
FIXED: Mapping[str, Sequence[str]] = {
    "up": ("--yes",),
    "run": ("--detach",),
    "down": ("--yes",),
}
NOTES: Mapping[str, Sequence[str]] = {
    "logs": ("Returns the last 200 lines, or `tail` lines. It does not follow the log.",),
    "rehearse": ("It may take minutes.",),
    "up": ("From then on, the stack is charged, until `down`. It may take minutes.",),
    "run": ("Returns once the job has started; `jobs`, `logs` and `explain` show its progress.",),
    "down": ("The bucket with logs and results is kept.",),
}
WITHOUT_SPENDING = (Effect.READS, Effect.LOCAL)
FINDINGS = ("check", "rehearse")  # tools that fail to report findings, not because of an error
MAX_LOG_LINES, MAX_LOG_BYTES = 200, 100_000
TYPES = {int: "integer", float: "number", bool: "boolean"}
INSTRUCTIONS = """\
tpuctl trains models on Google Cloud TPUs. The tools are for the stack of {stack_file}, {cloud}.
Order: check and rehearse a script, plan (shows the cost), up, run, logs, down.
{spending}
For everything else, run the command line: tpuctl help."""
SPENDING = """\
up and run may cost money: show the user the plan's cost and ask first. Call down after the last
job."""
NO_SPENDING = """\
up, run, stop and down are not available: the user may run these commands, or start this server with
--allow-spending."""


def serve(state: State, *, allow_spending: bool) -> None:
    """Serve the tools on stdin and stdout until stdin is closed."""
    # Otherwise the SDK would wait for another line of input.
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    anyio.run(_Tools(state, allow_spending=allow_spending).serve)


class _View(JsonLines):
    """Keeps the log for the answer, and reports steps as they start and proceed."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self.log = bytearray()
        self._report = report

    def on(self, event: Event) -> None:
        if isinstance(event, LogChunk):
            self.log += event.data
            del self.log[:-MAX_LOG_BYTES]
            return
        super().on(event)
        if isinstance(event, StepStarted):
            self._report(f"{event.action} {event.address}")
        elif isinstance(event, StepProgress):
            self._report(f"{event.address}: {event.text}")
        elif isinstance(event, StepFinished):
            self._report(f"{event.address}: {event.outcome.value}")


class _State(State):
    """The state of a command that can be canceled from another thread."""

    loop: asyncio.AbstractEventLoop | None = None
    task: asyncio.Task[Any] | None = None

    def wait_for(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
            return await work

        return asyncio.run(main())

    def cancel(self) -> None:
        """Do as after Ctrl-C."""
        if self.loop is not None and self.task is not None:
            with suppress(RuntimeError):  # it has just ended
                self.loop.call_soon_threadsafe(self.task.cancel)


class _Tools:
    """The tools for one cloud and stack file."""

    def __init__(self, state: State, *, allow_spending: bool) -> None:
        self.state = state
        self.allow_spending = allow_spending
        root = command_line()
        self.commands = {name: root.get_command(None, name) for name in TOOLS}
        # Not the loop's few threads: tools that wait for the cloud would keep others waiting.
        self.threads = ThreadPoolExecutor(MAX_CALLS, "tool")
        self.schemas = {name: _schema(self.commands[name], TOOLS[name]) for name in TOOLS}

    async def serve(self) -> None:
        server = Server(
            "tpuctl",
            version=__version__,
            instructions=INSTRUCTIONS.format(
                stack_file=self.state.stack_file,
                cloud="on the local cloud, which is free"
                if self.state.is_free
                else "on Google Cloud",
                spending=SPENDING if self.allow_spending else NO_SPENDING,
            ),
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    def is_allowed(self, name: str) -> bool:
        return self.allow_spending or COMMANDS[name].effect in WITHOUT_SPENDING

    async def list_tools(
        self, _: ServerRequestContext, __: protocol.PaginatedRequestParams | None
    ) -> protocol.ListToolsResult:
        return protocol.ListToolsResult(tools=[self.tool(n) for n in TOOLS if self.is_allowed(n)])

    def tool(self, name: str) -> protocol.Tool:
        effect = COMMANDS[name].effect
        text = " ".join(EXAMPLE.sub("", self.commands[name].help).split())
        return protocol.Tool(
            name=name,
            description=" ".join([text, *NOTES.get(name, ()), f"Effect: {effect.value}."]),
            input_schema=self.schemas[name],
            annotations=protocol.ToolAnnotations(
                title=f"tpuctl {name}",
                read_only_hint=effect is Effect.READS,
                destructive_hint=effect is Effect.DELETES or name == "up",  # it may replace
                idempotent_hint=name not in ("rehearse", "run"),
                open_world_hint=not self.state.is_free,
            ),
        )

    async def call_tool(
        self, context: ServerRequestContext, call: protocol.CallToolRequestParams
    ) -> protocol.CallToolResult:
        """Run the tool's command, in a thread: it has an event loop of its own."""
        arguments = call.arguments or {}
        if problem := self.refusal(call.name, arguments):
            return _failure([problem])

        count, loop = itertools.count(1), asyncio.get_running_loop()

        def report(text: str) -> None:
            with suppress(RuntimeError):  # the agent is gone; the command continues
                progress = context.session.report_progress(next(count), None, text)
                asyncio.run_coroutine_threadsafe(progress, loop)

        state = _State(json=True)
        state.view = view = _View(report)
        work = loop.run_in_executor(self.threads, self.run, call.name, arguments, state, view)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:  # by the agent, or as it ends
            state.cancel()
            with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                await asyncio.wait({work})
            raise

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> Diagnostic | None:
        """Why the tool cannot be called like this, if so."""
        if name not in TOOLS:
            hint = f"Use one of {', '.join(filter(self.is_allowed, TOOLS))}."
            return Diagnostic("Unknown tool", f"there is no tool {name}", hint)
        if not self.is_allowed(name):
            return Diagnostic(
                "Spending is not allowed",
                f"{name} {COMMANDS[name].effect.value}, and this server was started without "
                "--allow-spending",
                "Ask the user to run it:\n"
                f"    {self.state.command_prefix} {name}\n"
                "or to start the server with\n"
                f"    {self.state.command_prefix} mcp --allow-spending",
            )
        errors = Draft202012Validator(self.schemas[name]).iter_errors(dict(arguments))
        if error := next(errors, None):
            where = ".".join(map(str, error.path))
            hint = f"The tool's schema describes its arguments, as does\n    tpuctl help {name}"
            return Diagnostic("Invalid arguments", error.message, hint, where)
        return None

    def run(
        self, name: str, arguments: Mapping[str, Any], state: State, view: _View
    ) -> protocol.CallToolResult:
        exit_code = execute(self.command_line(name, arguments), state)
        if name == "logs" and isinstance(state.data, dict):
            state.data["text"] = view.log.decode(errors="replace")
        envelope = json.loads(answer(state, exit_code))
        if exit_code != 0 and not (name in FINDINGS and state.data is not None):
            return _failure(view.diagnostics, envelope)
        return protocol.CallToolResult(
            content=[protocol.TextContent(text=json.dumps(envelope, ensure_ascii=False))],
            structured_content=envelope,
        )

    def command_line(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """The command with these arguments, each in a form that no value can leave."""
        options: list[str] = []
        positional: list[str] = []
        after: list[str] = []
        if name == "logs":
            arguments = {"tail": MAX_LOG_LINES, **arguments}
        for parameter in self.commands[name].params:
            value: Any = arguments.get(_name(parameter))
            values: list[str] = value if isinstance(value, list) else [str(value)]
            if value is None or value is False:
                continue
            if parameter.name == "arguments":
                after = ["--", *values]
            elif parameter.param_type_name == "argument":
                positional += values
            elif value is True:
                options.append(parameter.opts[0])
            else:
                options += [f"{parameter.opts[0]}={value}" for value in values]
        where = [f"--cloud={self.state.cloud.value}"]
        if self.state.named_stack_file is not None:  # a command may do without another
            where.append(f"--stack-file={self.state.named_stack_file}")
        return ["--json", *where, name, *FIXED.get(name, ()), *options, *positional, *after]


def _name(parameter: Any) -> str:
    """The name of an argument, or of an option without dashes."""
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    return str(parameter.opts[0]).lstrip("-").replace("-", "_")


def _schema(command: Any, names: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a command's parameters."""
    parameters = {_name(parameter): parameter for parameter in command.params}
    return {
        "type": "object",
        "properties": {name: _property(parameters[name]) for name in names},
        "required": [name for name in names if parameters[name].required],
        "additionalProperties": False,
    }


def _property(parameter: Any) -> dict[str, Any]:
    kind = parameter.type_descriptor.annotation
    is_positional = parameter.param_type_name == "argument" and parameter.name != "arguments"
    # A value that begins with a dash would be taken for an option.
    text = {"type": "string", **({"pattern": "^(?!-)"} if is_positional else {})}
    schema: dict[str, Any] = {"type": TYPES[kind]} if kind in TYPES else text
    if getattr(kind, "__origin__", None) is list:
        schema = {"type": "array", "items": text}
    return {**schema, "description": (parameter.help or "").strip()}


def _failure(
    diagnostics: Sequence[Diagnostic], envelope: dict[str, Any] | None = None
) -> protocol.CallToolResult:
    """An error with the texts of the command line."""
    return protocol.CallToolResult(
        content=[
            protocol.TextContent(text="\n".join(diagnostic.text for diagnostic in diagnostics))
        ],
        structured_content=envelope,
        is_error=True,
    )
