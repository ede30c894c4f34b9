"""The root of the command line: global options, and commands that load on first use."""

from __future__ import annotations

import importlib
import os
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli.help.command_classes import App, Group
from tpuctl.cli.help.commands import COMMANDS
from tpuctl.cli.help.help_pages import root_page
from tpuctl.cli.state import CloudName, Interrupted, State
from tpuctl.version import __version__


class Root(Group):
    """All commands; each module is imported when one of its commands is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.commands.update(_load_commands(cmd_name))
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(root_page())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._global_options_first(args))

    def _global_options_first(self, args: list[str]) -> list[str]:
        """Move global options from anywhere before `--` to the front, to the root."""
        options = {
            name: option for option in self.params if not option.is_eager for name in option.opts
        }
        front, rest = [], []
        words = iter(args)
        for word in words:
            name, has_value, _ = word.partition("=")
            option: Any = options.get(name)
            if option is None or (option.is_flag and has_value):
                rest.append(word)
            else:
                front += [word, *islice(words, 0 if option.is_flag or has_value else 1)]
            if word == "--":
                rest += words
        return front + rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


def _load_commands(name: str) -> dict[str, Any]:
    """The command of this name, and others that its module registers with it."""
    holder = App(add_completion=False)
    holder.callback()(lambda: None)
    module = importlib.import_module(f"tpuctl.cli.{COMMANDS[name].module}")
    if hasattr(module, "register"):
        module.register(holder)
    else:
        holder.command(name)(getattr(module, name.replace("-", "_")))
    group: Any = typer.main.get_command(holder)
    commands: dict[str, Any] = group.commands
    return commands


app = App(
    name="tpuctl",
    cls=Root,
    help="From an empty Google Cloud project to a model training on a TPU, and back to zero cost.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command_line() -> Any:
    """The root as click has it: what parses arguments."""
    return typer.main.get_command(app)


def _option(name: str, *short: str, **settings: Any) -> Any:
    """A global option, with its environment variable."""
    variable = f"TPUCTL_{name.removeprefix('--').replace('-', '_').upper()}"
    return typer.Option(name, *short, envvar=variable, show_envvar=False, **settings)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"tpuctl {__version__}")
        raise typer.Exit


def _install_completion(requested: bool) -> None:
    if requested:
        from tpuctl.cli.completion.shells import current_shell, install

        shell = current_shell()
        done = install(shell)
        typer.echo(f"Installed {shell} completion in {done.script}.")
        if done.changed is not None:
            typer.echo(f"Added a line to {done.changed} that loads it.")
        typer.echo("Open a new shell to use it.")
        raise typer.Exit


def _show_completion(requested: bool) -> None:
    if requested:
        from tpuctl.cli.completion.shells import completion_script, current_shell

        typer.echo(completion_script(current_shell()), nl=False)
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    stack_file: Annotated[
        Path | None,
        _option(
            "--stack-file", help="Stack file (default: tpuctl.yaml here, or the nearest above)."
        ),
    ] = None,
    cloud: Annotated[CloudName, _option("--cloud", help="Cloud to use.")] = CloudName.google,
    impersonate: Annotated[
        str,
        _option(
            "--impersonate-service-account",
            metavar="ACCOUNT",
            help="Act as this service account (its email address).",
        ),
    ] = "",
    json: Annotated[bool, _option("--json", help="Print the result as one JSON object.")] = False,
    events: Annotated[
        bool, _option("--events", help="With --json: stream events as JSON lines.")
    ] = False,
    quiet: Annotated[
        bool, _option("--quiet", "-q", help="Print only errors and the result.")
    ] = False,
    verbose: Annotated[bool, _option("--verbose", "-v", help="Show tracebacks.")] = False,
    no_color: Annotated[bool, _option("--no-color", help="Disable colors.")] = False,
    yes: Annotated[bool, _option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            callback=_install_completion,
            is_eager=True,
            help="Install tab completion for this shell (bash, zsh, fish).",
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            callback=_show_completion,
            is_eager=True,
            help="Print the completion script.",
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    state: State = context.obj
    state.named_stack_file, state.cloud = stack_file, cloud
    source = context.get_parameter_source("impersonate")
    if source is not None and source.name == "COMMANDLINE":
        state.impersonated = impersonate
        os.environ["TPUCTL_IMPERSONATE_SERVICE_ACCOUNT"] = impersonate  # also of child processes
    state.json, state.events = json, events
    state.quiet, state.verbose, state.no_color, state.yes = quiet, verbose, no_color, yes
