"""The `notify` commands: try the webhook of the stack file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tpuctl.cli import responses
from tpuctl.cli.help.command_classes import App
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.view.responses.jobs import WebhookTest

app = App(
    help="Notifications of jobs and machines by a webhook (`notify` in the stack file)."
    "\n\nExample: tpuctl notify test",
    invoke_without_command=True,
)


def register(root: typer.Typer) -> None:
    app.command("test")(send_test)
    root.add_typer(app, name="notify")


def send_test(context: typer.Context) -> None:
    """Send a test message to the webhook, and show how it answers.

    Reads the webhook's URL from Secret Manager with your credentials, and
    checks that the machines' service account may read it, too. Exits with 1
    if the message was not delivered.

    Example: tpuctl notify test
    """
    from tpuctl.flows.machines import notify

    state: State = context.obj
    test = state.wait_for(notify.send_test(state.tpuctl().context))

    def answer() -> WebhookTest:
        return responses.jobs.WebhookTest.from_object(test)

    state.answer(
        answer,
        lambda: print(f"Sent a test message as {test.format}: HTTP {test.status}."),
    )
