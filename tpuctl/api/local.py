"""What `--cloud local` needs of this machine: the server running, the machines' image made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.engine.step import step
from tpuctl.errors import OperationFailed, TpuctlError, Unreachable, Usage

if TYPE_CHECKING:
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.model.events import Emit

__all__ = [
    "install_interpreter",
    "prepare_image",
    "require_google",
    "running_endpoint",
    "unless_gone",
]

T = TypeVar("T")
GONE_SECONDS = 60.0  # without a listener, after which a local cloud is not waited for
LOOK_SECONDS = 2.0


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


async def prepare_image(
    tensorflow: str | None, emit: Emit, may_install: Callable[[str], bool]
) -> None:
    """Make the machines' image before a node waits for it: of the nearest TensorFlow if need be.

    `may_install` is asked whether uv may download the Python that this TensorFlow needs. Raises
    TpuctlError where no image can be made.
    """
    from tpuctl.emulator.machine import MachineError
    from tpuctl.emulator.machines import ImageStore, NoImage
    from tpuctl.model.events import Note

    images = ImageStore()
    try:
        if tensorflow is not None and not await asyncio.to_thread(images.can_run, tensorflow):
            await install_interpreter(tensorflow, emit, may_install)
        choice = await asyncio.to_thread(images.choose, tensorflow)
        if choice.note:
            emit(Note(f"The machines of the local cloud have {choice.note}"))
        if images.is_made(choice.tensorflow):
            return
        name = f"image/tensorflow-{choice.tensorflow}" if choice.tensorflow else "image/python"
        with step(emit, name, "make", "the machines of the local cloud run it") as making:
            await images.ensure(choice.tensorflow, making.report, making.moved)
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
    from tpuctl.emulator.machines import ImageStore

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
        step(emit, f"python/{minor}", "download", because) as installing,
    ):
        problem = await interpreters.install(minor, installing.report)
        if problem is not None:
            raise OperationFailed(
                "uv could not install it",
                problem,
                hint="Install it another way, with pyenv or your system's packages.",
            )


async def unless_gone(work: Coroutine[Any, Any, T], endpoint: Endpoint, repeat: str) -> T:
    """What `work` returns, as long as a local cloud runs.

    Once nothing has listened at its address for GONE_SECONDS, `work` is cancelled and Unreachable
    raised, which names the command line `repeat` to go on with. One that is started again before
    that is met by the retries of `work`. Google is not watched: its failures pass by themselves.
    """
    if not endpoint.is_local:
        return await work
    task = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_gone(endpoint))
    try:
        await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Unreachable(
            "Local cloud is gone",
            f"nothing has listened at {endpoint.authority} for {GONE_SECONDS:.0f} s: its process "
            "has ended",
            hint=f"Start it, then go on:\n    tpuctl local up\n    {repeat}",
        )
    finally:
        for each in (task, watching):
            each.cancel()
        await asyncio.gather(task, watching, return_exceptions=True)


async def _until_gone(endpoint: Endpoint) -> None:
    """Return once connections have been refused for so long.

    A port that nothing listens at refuses at once; one that is slow to answer is no sign.
    """
    host, _, port = endpoint.authority.rpartition(":")
    refused: float | None = None
    while refused is None or time.monotonic() - refused < GONE_SECONDS:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            refused = refused or time.monotonic()
        except OSError:
            pass
        else:
            writer.close()
            refused = None
        await asyncio.sleep(min(LOOK_SECONDS, GONE_SECONDS / 2))
