"""What `--cloud local` needs of this machine: the server running, the machines' image made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tpuctl.engine.step import step
from tpuctl.errors import OperationFailed, TpuctlError, Usage

if TYPE_CHECKING:
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.model.events import Emit

__all__ = [
    "endpoint_of",
    "install_interpreter",
    "prepare_image",
    "running_endpoint",
]


def endpoint_of(cloud: str, emit: Emit) -> Endpoint:
    """Where the APIs of `google` or `local` are; the local cloud is started when it does not run.

    Raises Usage in a shell whose way to Google was led to the local cloud.
    """
    from tpuctl.cloud.endpoints import GOOGLE

    if cloud != "google":
        return running_endpoint(emit)
    _require_google()
    return GOOGLE


def _require_google() -> None:
    """Raises Usage in a shell whose way to Google was led to the local cloud."""
    import os

    from tpuctl.emulator.client.shell_record import RECORD

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
    from tpuctl.emulator.client import remote_control, server_process

    home = server_process.default_home()
    running = server_process.status(home)
    if running is None:
        with step(emit, "cloud/local", "start", "it is not running"):
            running = server_process.start(home)
    caller = os.environ.get("TPUCTL_LOCAL_CALLER")
    token = remote_control.token(running, caller) if caller else running.token
    return Endpoint("local", running.url, token, running.runs_startup_scripts)


async def prepare_image(
    tensorflow: str | None, emit: Emit, may_install: Callable[[str], bool]
) -> None:
    """Make the machines' image before a node waits for it: of the nearest TensorFlow if need be.

    `may_install` decides whether uv may download the Python that this TensorFlow needs. Raises
    TpuctlError where no image can be made.
    """
    from tpuctl.emulator.machines.images import ImageStore, NoImage
    from tpuctl.emulator.machines.interface import MachineError
    from tpuctl.model.events import Note

    images = ImageStore()
    try:
        if tensorflow is not None and not await asyncio.to_thread(images.can_run, tensorflow):
            await install_interpreter(tensorflow, emit, may_install)
        choice = await asyncio.to_thread(images.choose, tensorflow)
        if choice.note:
            emit(Note(f"The machines of the local cloud have {choice.note}"))
        if images.is_cached(choice.tensorflow):
            return
        name = f"image/tensorflow-{choice.tensorflow}" if choice.tensorflow else "image/python"
        with step(emit, name, "make", "the machines of the local cloud run it") as progress:
            await images.ensure(choice.tensorflow, progress.report, progress.report_bytes)
    except NoImage as error:
        hint = f"{error.hint}\nThen repeat the command."
        raise TpuctlError("No image for the machines", str(error), hint=hint) from error
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


async def install_interpreter(
    tensorflow: str, emit: Emit, may_install: Callable[[str], bool]
) -> None:
    """Have uv download a Python that this TensorFlow has wheels for, if uv is there and may.

    A failed download is reported as a failed step and does not raise.
    """
    from tpuctl import interpreters
    from tpuctl.emulator.machines.images import ImageStore

    minors = ImageStore().interpreters(tensorflow)
    minor, needed = minors[0], interpreters.or_list(minors)
    question = (
        f"TensorFlow {tensorflow} needs Python {needed}, and none was found. "
        f"Download Python {minor} with uv?"
    )
    if interpreters.uv() is None or not may_install(question):
        return
    because = f"TensorFlow {tensorflow} needs it"
    with (
        suppress(OperationFailed),
        step(emit, f"python/{minor}", "download", because) as progress,
    ):
        problem = await interpreters.install(minor, progress.report)
        if problem is not None:
            raise OperationFailed(
                "uv could not install it",
                problem,
                hint="Install it another way, with pyenv or your system's packages.",
            )
