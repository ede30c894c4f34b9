"""Installs a job's packages on this computer, with the program of the workers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuctl.assets import program, shipped_programs
from tpuctl.errors import RemoteFailed
from tpuctl.model.jobs.installation import Installation, lock_text

# `jax[tpu]` and `torch_xla[tpu]` require libtpu, which a CPU does not need and which exists for
# Linux on x86_64 only.
TPU_EXTRA = re.compile(
    r"^(?P<name>\s*(?:jax|torch[-_.]xla)\s*\[)(?P<extras>[^\]]*)\]", re.IGNORECASE | re.MULTILINE
)
LIBTPU = re.compile(
    r"^[ \t]*libtpu(?:[-_.]nightly)?(?![\w-])(?:.*\\\n)*.*\n?", re.IGNORECASE | re.MULTILINE
)
TENSORFLOW_TPU = re.compile(r"^(?P<name>[ \t]*tensorflow)[-_.]tpu(?![\w.-])", re.I | re.M)
TENSORFLOW = re.compile(
    r"^[ \t]*tensorflow(?:[-_.][ct]pu)?(?![\w.-])(?:.*\\\n)*.*\n?", re.IGNORECASE | re.MULTILINE
)
LOG = "log"


@dataclass(frozen=True)
class Packages:
    """The interpreter that runs the script, and entries to prepend to its search paths."""

    python: Path
    virtual_env: Path | None = None  # the virtual environment, if any
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # packages of a lock, as `name version`


def for_cpu(requirements: str) -> str:
    """Requirements for a CPU instead of a TPU.

    >>> for_cpu("jax[tpu]>=0.6\\nlibtpu==0.0.20\\ntensorflow-tpu==2.19.1\\n")
    'jax>=0.6\\ntensorflow==2.19.1\\n'
    """

    def remove(match: re.Match[str]) -> str:
        extras = [extra.strip() for extra in match["extras"].split(",")]
        others = ",".join(extra for extra in extras if extra.lower() != "tpu")
        return match["name"] + others + "]" if others else match["name"].rstrip("[")

    requirements = TENSORFLOW_TPU.sub(r"\g<name>", LIBTPU.sub("", requirements))
    return TPU_EXTRA.sub(remove, requirements)


def without_tensorflow(requirements: str) -> str:
    """Requirements for an environment that has its own TensorFlow.

    >>> without_tensorflow("tensorflow-tpu==2.19.1\\ntensorflow-datasets\\n")
    'tensorflow-datasets\\n'
    """
    return TENSORFLOW.sub("", requirements)


async def install(
    python: Path,
    installation: Installation,
    code: Path,
    digest: str,
    *,
    uv: str,
    folder: Path,
    variables: Mapping[str, str],
    report: Callable[[str], None],
    replaced: Mapping[str, str] | None = None,
) -> Packages:
    """Install a job's packages for `code`, cached by content in HOME.

    `python` is the image's, or stands for the one that the job brings; `uv` is the program,
    `folder` a new working folder, `variables` the environment of the installers. `replaced` names
    packages of a lock for the same version of another one, or for none (""). Raises RemoteFailed
    with the installer's last errors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in shipped_programs():
        (folder / name).write_text(program(name), "utf-8")
    (folder / "code").symlink_to(code.resolve())
    here = {"uv": uv, **({"python": str(python)} if installation.python is not None else {})}
    spec = {
        "install": installation.model_dump(),
        "bundle": {"sha256": digest},
        "here": here,
        "replaced": dict(replaced or {}),
    }
    (folder / "spec.json").write_text(json.dumps(spec), "utf-8")
    process = await asyncio.create_subprocess_exec(
        *(
            str(python),
            "-S",
            "-I",
            str(folder / "environment.py"),
            "create",
            str(folder),
            str(python),
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(variables),
        start_new_session=True,
    )
    try:
        output = await _wait_reporting(process, folder / LOG, report)
    finally:
        if process.returncode is None:
            _kill_group(process.pid)
            await process.wait()
    if process.returncode:
        raise RemoteFailed(
            "Installing requirements failed",
            _error_text(folder / LOG, output),
            hint="Fix the requirements, which would fail on a worker too, and try again.",
            where=installation.requirements or lock_text(installation) or "job.requirements",
        )
    environment = json.loads((folder / "environment.json").read_text("utf-8"))
    home = Path(environment["virtual_env"]) if environment["virtual_env"] else None
    if home is not None:
        (home / "complete").touch()  # the time of its last use
    return Packages(
        Path(environment["python"]),
        home,
        tuple(environment["path"]),
        tuple(environment["python_path"]),
        tuple(environment.get("left_out") or ()),
    )


async def _wait_reporting(
    process: asyncio.subprocess.Process, log: Path, report: Callable[[str], None]
) -> str:
    communicating = asyncio.ensure_future(process.communicate())
    try:
        while not communicating.done():
            await asyncio.wait({communicating}, timeout=0.5)
            if lines := _lines(log):
                report(lines[-1].removeprefix("tpuctl: "))
    finally:
        communicating.cancel()
        await asyncio.gather(communicating, return_exceptions=True)
    out, _ = communicating.result()
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


def _error_text(log: Path, output: str) -> str:
    """The reason of the failure, then pip's errors."""
    errors = [line.strip() for line in _lines(log) if line.lstrip().startswith("ERROR:")]
    reason = output.strip().splitlines()[-1] if output.strip() else "it failed"
    return "\n".join([reason, *errors[-4:]])
