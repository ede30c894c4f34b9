"""What a job installs beside the runtime's TensorFlow, made by the program that workers use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.assets import program
from tpuctl.errors import RemoteFailed

__all__ = ["Packages", "install"]

PROGRAMS = ("environment.py", "run_once.py", "folder.py")
LOG = "log"


@dataclass(frozen=True)
class Packages:
    """The interpreter to start the script with, and what goes before its search paths."""

    python: Path
    virtual_env: Path | None = None  # the virtual environment, where there is one
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


async def install(
    image: Path,
    installation: Mapping[str, Any],
    code: Path,
    digest: str,
    *,
    folder: Path,
    variables: Mapping[str, str],
    report: Callable[[str], None],
) -> Packages:
    """Install what `wanted`, a job's installation, says of `code`; kept by content in HOME.

    `image` is the Python of the runtime, `folder` an empty one to work in, `variables` those that
    pip is to see. Raises RemoteFailed with pip's last words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        (folder / name).write_text(program(name), "utf-8")
    (folder / "code").symlink_to(code.resolve())
    spec = {"install": dict(installation), "bundle": {"sha256": digest}}
    (folder / "spec.json").write_text(json.dumps(spec), "utf-8")
    making = await asyncio.create_subprocess_exec(
        *(
            str(image),
            "-S",
            "-I",
            str(folder / "environment.py"),
            "create",
            str(folder),
            str(image),
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(variables),
        start_new_session=True,
    )
    try:
        output = await _until_made(making, folder / LOG, report)
    finally:
        if making.returncode is None:
            _kill_group(making.pid)
            await making.wait()
    if making.returncode:
        raise RemoteFailed(
            "Installing requirements failed",
            _words(folder / LOG, output),
            hint="Fix the requirements, which would fail on a worker too, and try again.",
            where=installation.get("requirements") or "job.requirements",
        )
    environment = json.loads((folder / "environment.json").read_text("utf-8"))
    home = Path(environment["virtual_env"]) if environment["virtual_env"] else None
    return Packages(
        Path(environment["python"]),
        home,
        tuple(environment["path"]),
        tuple(environment["python_path"]),
    )


async def _until_made(
    making: asyncio.subprocess.Process, log: Path, report: Callable[[str], None]
) -> str:
    asking = asyncio.ensure_future(making.communicate())
    try:
        while not asking.done():
            await asyncio.wait({asking}, timeout=0.5)
            if lines := _lines(log):
                report(lines[-1].removeprefix("tpuctl: "))
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    out, _ = asking.result()
    return out.decode("utf-8", "replace")


def _kill_group(pid: int) -> None:
    import os
    import signal
    from contextlib import suppress

    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _lines(log: Path) -> list[str]:
    try:
        return [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return []


def _words(log: Path, output: str) -> str:
    """Why not, then what pip said that tells why."""
    errors = [line.strip() for line in _lines(log) if line.lstrip().startswith("ERROR:")]
    reason = output.strip().splitlines()[-1] if output.strip() else "it failed"
    return "\n".join([reason, *errors[-4:]])
