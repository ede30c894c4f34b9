"""What `--cloud local` needs: a running server and an image for its machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.engine.step import step
from tpuctl.errors import OperationFailed, TpuctlError, Usage

if TYPE_CHECKING:
    from tpuctl.catalog import Runtime
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.model.events import Emit


IMPERSONATE = "TPUCTL_IMPERSONATE_SERVICE_ACCOUNT"
SERVICE_ACCOUNT = re.compile(r"[^@\s]+@[^@\s/]+\.gserviceaccount\.com")


def endpoint_of(cloud: str, emit: Emit) -> Endpoint:
    """The endpoint of `google` or `local`; starts the local cloud if it is not running.

    With TPUCTL_IMPERSONATE_SERVICE_ACCOUNT, or its option, requests are that account's.

    Raises Usage for a name that is none, and for Google in a shell whose environment points at
    the local cloud.
    """
    from tpuctl.cloud.ca_bundle import share_ca_bundle
    from tpuctl.cloud.endpoints import GOOGLE

    account = _impersonated_account()
    if cloud != "google":
        return replace(running_endpoint(emit), impersonate=account)
    _require_google()
    share_ca_bundle()
    return replace(GOOGLE, impersonate=account)


def _impersonated_account() -> str:
    """The service account that the environment, or the option, says to act as; "" for none."""
    import os

    account = os.environ.get(IMPERSONATE, "")
    if account and not SERVICE_ACCOUNT.fullmatch(account):
        raise Usage(
            "Invalid service account",
            f"{account!r} is not the email address of a service account",
            hint="Pass one, or unset the variable:\n"
            "    --impersonate-service-account=NAME@PROJECT.iam.gserviceaccount.com",
            where=IMPERSONATE,
        )
    return account


def _require_google() -> None:
    """Raises Usage in a shell whose environment points at the local cloud."""
    import os

    from tpuctl.shell_record import RECORD

    if RECORD in os.environ:
        raise Usage(
            "This shell points at the local cloud",
            "requests to Google from this shell go to the local cloud",
            hint='Reset the shell first:\n    eval "$(tpuctl local env --unset)"',
        )


def running_endpoint(emit: Emit) -> Endpoint:
    """The endpoint of the local cloud; starts it if it is not running.

    Requests are made as its owner, unless TPUCTL_LOCAL_CALLER names another member.
    """
    import os

    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.local_cloud import remote_control, server_process

    home = server_process.default_home()
    running = server_process.status(home)
    if running is None:
        with step(emit, "cloud/local", "start", "it is not running"):
            running = server_process.start(home)
    caller = os.environ.get("TPUCTL_LOCAL_CALLER")
    token = remote_control.token(running, caller) if caller else running.token
    return Endpoint("local", running.url, token, running.runs_startup_scripts)


def machine_python(runtime: Runtime) -> str | None:
    """The Python ("3.11") of the local cloud's machines with a runtime: the runtime's, or else the
    nearest one. None if the runtime's is unknown. May start interpreters, which takes a moment."""
    from tpuctl.local_cloud.machine_images import ImageStore, NoImage

    if runtime.python is None:
        return None
    try:
        return ImageStore().choose(runtime.tensorflow, runtime.python).python
    except NoImage:  # `up` reports it, or the machines have another TensorFlow
        return runtime.python


async def prepare_runtime(runtime: Runtime, emit: Emit, may_install: Callable[[str], bool]) -> None:
    """Build the machine image of a runtime, as `prepare_image`."""
    await prepare_image(runtime.tensorflow, emit, may_install, python=runtime.python)


async def prepare_image(
    tensorflow: str | None,
    emit: Emit,
    may_install: Callable[[str], bool],
    *,
    python: str | None = None,
) -> None:
    """Build the machine image before a node needs it, with the nearest TensorFlow and Python
    available. `python` is its real image's; None stands for the one that runs this program.

    `may_install` decides whether uv may download the Python that this TensorFlow needs. Raises
    TpuctlError if no image can be built.
    """
    from tpuctl.local_cloud.machine_error import MachineError
    from tpuctl.local_cloud.machine_images import ImageStore, NoImage
    from tpuctl.model.events import Note

    images = ImageStore()
    try:
        if tensorflow is not None and not await asyncio.to_thread(images.can_run, tensorflow):
            await install_interpreter(tensorflow, emit, may_install)
        choice = await asyncio.to_thread(images.choose, tensorflow, python)
        if choice.note:
            emit(Note(f"The machines of the local cloud have {choice.note}"))
        if images.is_cached(choice.tensorflow, choice.python):
            return
        name = f"image/tensorflow-{choice.tensorflow}" if choice.tensorflow else "image/python"
        with step(emit, name, "create", "the machines of the local cloud run it") as progress:
            await images.ensure(
                choice.tensorflow, progress.report, progress.report_bytes, python=choice.python
            )
    except NoImage as error:
        hint = f"{error.hint}\nThen repeat the command."
        raise TpuctlError("No machine image available", str(error), hint=hint) from error
    except MachineError as error:
        raise TpuctlError(
            "Cannot build the machine image",
            str(error),
            hint=(
                "Check the free disk space and the connection to the package index; to store\n"
                "images in another folder, set TPUCTL_IMAGE_CACHE. Then repeat the command."
            ),
        ) from error


async def install_interpreter(
    tensorflow: str, emit: Emit, may_install: Callable[[str], bool]
) -> None:
    """Download a Python that this TensorFlow has wheels for, if uv is installed and allowed to.

    A failed download is reported as a failed step, not raised.
    """
    from tpuctl import interpreters
    from tpuctl.local_cloud.machine_images import ImageStore

    minors = ImageStore().interpreters(tensorflow)
    minor, needed = minors[0], interpreters.or_list(minors)
    question = (
        f"TensorFlow {tensorflow} needs Python {needed}, which is not installed. "
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
                "uv could not install Python",
                problem,
                hint="Install it another way, with pyenv or your system's packages.",
            )
