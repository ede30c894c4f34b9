"""Deletes whatever is left of a live run's stacks, and verifies that nothing is.

As a program, `python -m tests.live.harness.cleanup SETTINGS`, it exits with 0 when nothing is left.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.live.harness.settings import Settings
from tpuctl.api import Tpuctl
from tpuctl.errors import ApiDisabled, TpuctlError
from tpuctl.model.events import Event, StepFinished
from tpuctl.model.status.inventory import InventoryItem

TRIES = 3


async def remaining_items(settings: Settings) -> list[InventoryItem]:
    """The resources of the run's stacks in the whole project."""
    stack = Tpuctl(name=settings.stack, project=settings.project, cloud=settings.cloud)
    items = await stack.orphans(_raise_unless_disabled)
    return [item for item in items if item.stack in settings.stacks]


def _raise_unless_disabled(kind: object, error: TpuctlError) -> None:
    """`up` enables the APIs of a stack, and nothing here disables them: a disabled one has nothing
    of it."""
    if not isinstance(error, ApiDisabled):
        raise error


async def clean(settings: Settings, log: list[str]) -> list[InventoryItem]:
    """Delete everything, with retries; return what is left. Appends messages to `log`."""
    remaining: list[InventoryItem] = []
    for attempt in range(1, TRIES + 1):
        remaining = await remaining_items(settings)
        if not remaining:
            return []
        names = ", ".join(item.address for item in remaining)
        log.append(f"Deleting {names} (attempt {attempt}) …")
        print(log[-1], flush=True)
        for name in sorted({item.stack for item in remaining}):
            stack = Tpuctl(
                name=name, project=settings.project, cloud=settings.cloud, emit=_on_event
            )
            try:
                await stack.down(delete_bucket=True)
            except TpuctlError as error:
                log.append(str(error))
                print(error, flush=True)
    return await remaining_items(settings)


def _on_event(event: Event) -> None:
    if isinstance(event, StepFinished) and event.seconds:
        print(f"  {event.address}: {event.outcome.value} ({event.seconds:.1f} s)", flush=True)


def main(arguments: Sequence[str]) -> int:
    settings = Settings.load(Path(arguments[0]))
    try:
        remaining = asyncio.run(clean(settings, []))
    except TpuctlError as error:
        print(f"Cannot list the project's resources: {error}")
        remaining = None
    if remaining == []:
        print(f"Nothing is left of {' and '.join(settings.stacks)} in {settings.project}.")
        return 0
    for item in remaining or ():
        print(f"STILL THERE{', CHARGED' if item.is_billable else ''}: {item.address} {item.detail}")
    print("Delete it with")
    for stack in settings.stacks:
        print(f"    {settings.down_command(stack)}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
