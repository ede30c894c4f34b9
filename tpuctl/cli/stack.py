"""Commands for stacks: init, check, plan, up, status, down."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli.app import State

__all__ = ["register"]

PANEL = "Stack"


def register(app: typer.Typer) -> None:
    for command in (init, check, plan, up, status, down):
        app.command(rich_help_panel=PANEL)(command)


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


def check(
    context: typer.Context,
    script: Annotated[Path | None, typer.Argument(help="A script to look at as well.")] = None,
) -> None:
    """Validate the stack file, and a script's syntax, without any network.

    Example: tpuctl check train.py
    """
    state: State = context.obj
    tpuctl = state.tpuctl()
    stack = tpuctl.stack
    if script is not None:
        from tpuctl.preflight.script import check_script

        check_script(script)
    facts = {
        "stack": stack.name,
        "type": stack.accelerator.name,
        "zone": stack.zone,
        "runtime": stack.runtime.version,
        "bucket": stack.bucket,
        "price": str(stack.price) if stack.price else "unknown",
    }

    def show() -> None:
        from tpuctl.view.tables import print_facts

        print_facts(facts.items())

    state.answer(facts, show)


def plan(context: typer.Context) -> None:
    """Show what `up` would create, change or leave, why, and what it costs an hour.

    Example: tpuctl plan
    """
    from tpuctl.view.stack import plan_data, show_plan

    state: State = context.obj
    prepared = state.wait_for(state.tpuctl().plan())

    def show() -> None:
        show_plan(prepared.plan)
        print(_price(prepared.stack))

    state.answer(plan_data(prepared.stack, prepared.plan), show)


def up(context: typer.Context) -> None:
    """Bring the stack up. Safe to interrupt and to repeat.

    Example: tpuctl up --yes
    """
    from tpuctl.view.stack import plan_data, show_plan

    state: State = context.obj
    tpuctl = state.tpuctl()

    def confirm(prepared: Any) -> None:
        if state.yes:
            return
        state.view.close()
        if not state.json:
            show_plan(prepared.plan)
        state.confirm(f"{_price(prepared.stack)} Go ahead?")

    prepared = state.wait_for(tpuctl.up(confirm))
    stack = prepared.stack

    def show() -> None:
        nothing = "Nothing to do: stack" if prepared.plan.is_empty else "Stack"
        print(f"{nothing} {stack.name} is up: {stack.accelerator.name} in {stack.zone}.")
        print(_price(stack))
        print(f"\nNext:\n    {state.typed} run SCRIPT\n    {state.typed} down")

    state.answer(plan_data(stack, prepared.plan), show)


def status(context: typer.Context) -> None:
    """Show what exists of the stack: state, age, cost so far.

    Example: tpuctl status
    """
    from tpuctl.view.stack import show_status, status_data

    state: State = context.obj
    found = state.wait_for(state.tpuctl().status())
    state.answer(
        status_data(found.stack, found.nodes, found.bucket),
        lambda: show_status(found.stack, found.nodes, found.bucket),
    )


def down(
    context: typer.Context,
    delete_bucket: Annotated[
        bool, typer.Option("--delete-bucket", help="Delete the bucket too, with all in it.")
    ] = False,
) -> int:
    """Take the stack away and prove what is left. Exit code 1 if something still costs money.

    Example: tpuctl down --yes
    """
    from tpuctl.view.stack import remaining_data, show_plan, show_remaining

    state: State = context.obj

    def confirm(teardown: Any) -> None:
        if state.yes:
            return
        state.view.close()
        if not state.json:
            show_plan(teardown.plan)
        state.confirm("Take this away?", default=not delete_bucket)

    done = state.wait_for(state.tpuctl().down(delete_bucket=delete_bucket, confirm=confirm))

    def show() -> None:
        show_remaining(done.remaining)
        if done.leaks:
            print(f"Still charged: {', '.join(one.address for one in done.leaks)}.")
        else:
            kept = [one for one in done.remaining if one.state == "kept" and one.is_billable]
            rest = f" but {', '.join(one.address for one in kept)}, asked to stay" if kept else ""
            print(f"Nothing that costs money is left{rest}.")

    state.answer({"remaining": remaining_data(done.remaining)}, show)
    return 1 if done.leaks else 0


def _price(stack: Any) -> str:
    if stack.price is None:
        return "No price is known for this node."
    return f"The node costs {stack.price}."
