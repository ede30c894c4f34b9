"""Collects what a bug report needs, from this machine and the cloud."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.flows.doctor.dump_files import job_files, supervisor_files
from tpuctl.model.stack.secret_sources import source_of
from tpuctl.model.text.redaction import (
    Redactor,
    arguments_without_secrets,
    named_secrets,
    secret_values,
)
from tpuctl.model.troubleshooting.command_record import read_records
from tpuctl.model.troubleshooting.debug_dump import Dump, DumpFile
from tpuctl.version import __version__

if TYPE_CHECKING:
    from tpuctl.flows.context import OpenStack
    from tpuctl.flows.stack.plan import Prepared
    from tpuctl.model.troubleshooting.diagnosis import Diagnosis

CLOUD_SECONDS = 30.0  # for everything that the cloud and the machines are asked
MAX_FILE_BYTES = 1 << 20
# Variables that change what tpuctl does. TPUCTL_LOCAL_ENV has the values of others.
VARIABLE = re.compile(
    r"(?:TPUCTL|GOOGLE|CLOUDSDK|GRPC|LC)_\w+|(?:HTTPS?|ALL|NO)_PROXY|LANG|TERM|COLUMNS|NO_COLOR|CI",
    re.IGNORECASE,
)
PROJECT_LINE = re.compile(r"""(?ms)^project:.*?\bid:\s*["']?([\w.:-]+)""")


@dataclass(frozen=True)
class Views:
    """How the results of flows are written as JSON."""

    plan: Callable[[Prepared], object]
    diagnosis: Callable[[Diagnosis], object]


async def collect(opened: OpenStack, views: Views, job: str = "") -> Dump:
    """What a report about this stack and a job needs; changes nothing.

    Without `job`, it is the running or the latest one. A part that cannot be read, or not within
    half a minute, is left out, with the reason. The local cloud is not started.
    """
    dump = Dump()
    dump.files.append(DumpFile("versions.json", "versions and settings", _json(_versions())))
    stack_text = _add_stack_file(opened, dump)
    await _add_cloud_parts(opened, views, job, dump)
    records = list(read_records())
    for number, record in enumerate(reversed(records), 1):
        command = record.command or " ".join(record.arguments[:1])
        name = f"commands/{number:02}-{re.sub(r'[^a-z]+', '-', command) or 'command'}.jsonl"
        about = f"calls of `tpuctl {command}`, {record.started:%Y-%m-%d %H:%M} UTC"
        with suppress(OSError):
            dump.files.append(DumpFile(name, about, record.path.read_text("utf-8", "replace")))
    if not records:
        dump.omitted["commands"] = "no command was recorded on this machine"
    projects = [project for record in records for _, project, _ in record.stacks]
    projects += [*PROJECT_LINE.findall(stack_text), os.environ.get("GOOGLE_CLOUD_PROJECT", "")]
    secrets = _secrets(opened) | named_secrets(stack_text) | _job_secrets(dump)
    dump.redact(Redactor(secrets=secrets, projects=projects, home=str(Path.home())))
    return dump


def _add_stack_file(opened: OpenStack, dump: Dump) -> str:
    from tpuctl.files import read_file

    name = "tpuctl.yaml"
    try:
        text = read_file(opened.stack_file, MAX_FILE_BYTES).decode(errors="replace")
    except OSError as error:
        dump.omitted[name] = f"{opened.stack_file}: {error.strerror}"
        return ""
    dump.files.append(DumpFile(name, "the stack file", text))
    return text


async def _add_cloud_parts(opened: OpenStack, views: Views, job: str, dump: Dump) -> None:
    async def plan() -> list[DumpFile]:
        from tpuctl.flows.stack.plan import plan as plan_up

        opened.stack.require_valid()
        prepared = await plan_up(opened.context)
        return [DumpFile("plan.json", "what `up` would do", _json(views.plan(prepared)))]

    async def doctor() -> list[DumpFile]:
        from tpuctl.flows.doctor.diagnose import diagnose

        diagnosis, _ = await diagnose(opened, lambda finding: None)
        findings = views.diagnosis(diagnosis)
        return [DumpFile("doctor.json", "the result of `doctor`", _json(findings))]

    async def job_part() -> list[DumpFile]:
        return await job_files(opened.context, job)

    async def supervisors() -> list[DumpFile]:
        return await supervisor_files(opened.context, job)

    parts: dict[str, Callable[[], Awaitable[list[DumpFile]]]] = {
        "plan.json": plan,
        "doctor.json": doctor,
        "job": job_part,
        "job's supervisors": supervisors,
    }
    if opened.cloud_name == "local" and not _local_cloud_is_running():
        dump.omitted |= dict.fromkeys(parts, "the local cloud is not running")
        return

    async def read(part: Callable[[], Awaitable[list[DumpFile]]]) -> list[DumpFile]:
        async with asyncio.timeout(CLOUD_SECONDS):
            return await part()

    results = await asyncio.gather(*map(read, parts.values()), return_exceptions=True)
    for name, result in zip(parts, results, strict=True):
        if not isinstance(result, BaseException):
            dump.files += result
            continue
        if isinstance(result, TimeoutError):
            dump.omitted[name] = f"not read within {CLOUD_SECONDS:.0f} seconds"
        elif isinstance(result, TpuctlError):
            problems = (
                f"{diagnostic.summary}: {diagnostic.detail}" for diagnostic in result.diagnostics
            )
            dump.omitted[name] = "; ".join(problems)
        elif isinstance(result, Exception):  # perhaps the bug that is to be reported
            dump.omitted[name] = f"{type(result).__name__}: {result}"
            dump.files.append(_traceback(name, result))
        else:
            raise result


def _traceback(name: str, error: Exception) -> DumpFile:
    import traceback

    text = "".join(traceback.format_exception(error))
    return DumpFile(f"{name.partition('.')[0]}-traceback.txt", "why it could not be read", text)


def _local_cloud_is_running() -> bool:
    from tpuctl.local_cloud import server_process

    return server_process.status(server_process.default_home()) is not None


def _secrets(opened: OpenStack) -> set[str]:
    """The values that are known to be secret: of the environment, and of the job."""
    secrets = secret_values(os.environ)
    with suppress(TpuctlError, OSError):
        stack = opened.stack
        secrets |= secret_values(stack.file.job.env)
        sources = (
            source_of(name, text, stack.project) for name, text in stack.file.job.secrets.items()
        )
        secrets |= {os.environ.get(source.variable, "") for source in sources}
    endpoint = vars(opened).get("endpoint")  # if it was used
    return secrets | {endpoint.token or "" if endpoint is not None else ""}


def _job_secrets(dump: Dump) -> set[str]:
    """The values of the job's arguments that its log and other files may repeat."""
    records = [json.loads(file.text) for file in dump.files if file.name == "job/job.json"]
    return {value for record in records for value in arguments_without_secrets(record["args"])[1]}


def _versions() -> dict[str, object]:
    release = {}
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    requirements: list[str] = []
    with suppress(metadata.PackageNotFoundError):  # run from its sources
        requirements = metadata.requires("tpuctl") or []
    installed = {}
    for requirement in requirements:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return {
        "tpuctl": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "system": platform.platform(),
        "distribution": release.get("PRETTY_NAME", ""),
        "ssh": _first_line(["ssh", "-V"]),
        "packages": installed,
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if VARIABLE.fullmatch(name) and name != "TPUCTL_LOCAL_ENV"
        },
    }


def _first_line(command: Iterable[str]) -> str:
    try:
        completed = subprocess.run(
            [*command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"not available: {error}"
    return next(iter((completed.stdout or completed.stderr).splitlines()), "")


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
