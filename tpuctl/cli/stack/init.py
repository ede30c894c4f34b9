"""The `init` command: write a stack file for scripts, or from a template with its job."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.completion.candidates import complete_templates, complete_zones
from tpuctl.cli.parameters.options import project_option, type_option
from tpuctl.cli.state import State
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.flows.stack.init import Draft, TpuOptions

DEFAULT_TEMPLATE = "bert-pretraining"


def init(
    context: typer.Context,
    template: Annotated[
        str,
        typer.Argument(
            help="Template; --list shows all (default: a stack file for the scripts in the "
            f"folder; without any, {DEFAULT_TEMPLATE}).",
            autocompletion=complete_templates,
            show_default=False,
        ),
    ] = "",
    project: Annotated[str, project_option("Project id (generated for the local cloud).")] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Stack name.")] = "",
    type_name: Annotated[
        str, type_option("TPU type, such as v5e-8 (default: the template's, or the cheapest).")
    ] = "",
    zone: Annotated[
        str,
        typer.Option(
            "--zone",
            metavar="ZONE",
            help="Zone, or several to try in order (default: the cheapest).",
            autocompletion=complete_zones,
        ),
    ] = "",
    spot: Annotated[
        bool, typer.Option("--spot", help="Use spot capacity: cheaper, may be preempted.")
    ] = False,
    folder: Annotated[Path, typer.Option("--folder", help="Folder to write to.")] = Path(),
    listing: Annotated[bool, typer.Option("--list", help="List the templates.")] = False,
) -> None:
    """Write a stack file for your scripts, or a template's with its job. Existing files are kept.

    In a folder with Python scripts, it shows what it finds and asks before
    writing; --yes accepts. Some templates contain only a job, to add to an
    existing stack.

    Example: tpuctl init --type v5e-8 --spot --project my-project
    """
    state: State = context.obj
    from tpuctl.flows.stack.init import describe_templates, detect_job, prepare
    from tpuctl.model.stack.stack_search import STACK_FILE

    if listing:
        templates = describe_templates()

        def show_list() -> None:
            from tpuctl.view.terminal.tables import print_facts

            print_facts(templates.items())
            state.suggest(f"{state.cloud_prefix} init TEMPLATE")

        state.answer(lambda: list(templates), show_list)
        return
    draft = prepare(
        template or DEFAULT_TEMPLATE,
        folder,
        name=name,
        project=project,
        local=state.is_free,
        tpu=_tpu_options(type_name, zone, spot),
        job=detect_job(folder) if not template else None,
    )
    if draft.job is not None:
        if not (state.json or state.quiet):
            _show_detected(draft, is_free=state.is_free)
        state.confirm(f"Write {draft.stack_file}?")
    written = draft.write()

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
            if written.stack_file != Path(STACK_FILE) and "--stack-file" not in typed:
                typed += f" --stack-file {shlex.quote(str(written.stack_file))}"
            suggested = ("doctor", "up", f"run {written.script}", "down")
            commands = [f"{typed} {command}" for command in suggested]
        state.note("\n".join(["", "Next:", *(f"    {command}" for command in commands)]))

    state.answer(lambda: responses.stacks.WrittenFiles(files=written.files), show)


def _tpu_options(type_name: str, zone: str, spot: bool) -> TpuOptions | None:
    """The TPU that the options name; None if they are not used. Raises Usage."""
    if not (type_name or zone or spot):
        return None
    from tpuctl.catalog import zones
    from tpuctl.cli.help.suggestions import require_type, require_zones
    from tpuctl.flows.stack.init import TpuOptions

    accelerator = require_type(type_name) if type_name else None
    return TpuOptions(accelerator, require_zones(zone, zones(), takes_region=False) or (), spot)


def _show_detected(draft: Draft, *, is_free: bool) -> None:
    from tpuctl.units import dollars
    from tpuctl.view.stack.cost import on_google
    from tpuctl.view.terminal.tables import print_facts
    from tpuctl.view.terminal.text_wrapping import readable_width, wrap

    assert draft.file is not None
    assert draft.job is not None
    job, tpu = draft.job, draft.file.tpu
    price = "unknown"
    if draft.price is not None:
        price = on_google(f"{dollars(draft.price.per_hour)}/h", is_free=is_free)
        price = f"{price}, prices of {draft.price.read}"
    print_facts(
        (
            (
                "script",
                "SCRIPT of `tpuctl run`: several" if job.script is None else str(job.script),
            ),
            ("framework", str(job.framework or "not found; TensorFlow is assumed")),
            ("requirements", job.requirements or "none"),
            ("TPU", f"{tpu.type}{', spot' * tpu.spot} in {', '.join(tpu.zones)}"),
            ("price", price),
        )
    )
    for note in job.notes:
        print(wrap(note, readable_width(sys.stdout)))
