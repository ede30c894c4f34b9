"""What `--cloud local` needs of this machine: the server running, the machines' image made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.engine.step import step
from tpuctl.errors import TpuctlError, Usage

if TYPE_CHECKING:
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.model.events import Emit

__all__ = ["prepare_image", "require_google", "running_endpoint"]


def require_google() -> None:
    """Raises Usage in a shell whose way to Google was led to the local cloud."""
    import os

    from tpuctl.emulator.shell_record import RECORD

    if RECORD in os.environ:
        raise Usage(
            "This shell is pointed at the local cloud",
            "what speaks to Google from here reaches the local cloud instead",
            hint='Undo that first:\n    eval "$(tpuctl local env --unset)"',
        )


def running_endpoint(emit: Emit) -> Endpoint:
    """Where the local cloud is; it is started when it does not run.

    Its owner is who calls, unless TPUCTL_LOCAL_CALLER names another member.
    """
    import os

    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.emulator import control, steering

    home = control.default_home()
    running = control.status(home)
    if running is None:
        with step(emit, "cloud/local", "start", "it is not running"):
            running = control.start(home)
    caller = os.environ.get("TPUCTL_LOCAL_CALLER")
    token = steering.token(running, caller) if caller else running.token
    return Endpoint("local", running.url, token, running.runs_startup_scripts)


async def prepare_image(tensorflow: str | None, emit: Emit) -> None:
    """Make the machines' image before a node waits for it."""
    from tpuctl.emulator.machine import MachineError
    from tpuctl.emulator.machines import ImageStore

    images = ImageStore()
    try:
        if images.is_made(tensorflow):
            return
        name = f"image/tensorflow-{tensorflow}" if tensorflow else "image/python"
        with step(emit, name, "make", "the machines of the local cloud run it") as making:
            await images.ensure(tensorflow, making.report, making.moved)
    except MachineError as error:
        raise TpuctlError(
            "Image cannot be made",
            str(error),
            hint=(
                "See whether there is room on the disk and a way to the package "
                "index; another folder for\n"
                "images is named by TPUCTL_IMAGE_CACHE. Then repeat the command."
            ),
        ) from error
