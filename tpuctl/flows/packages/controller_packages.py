"""What a controller installs this tpuctl from where it cannot download anything."""

from __future__ import annotations

import platform

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Usage
from tpuctl.flows.packages.tools import store_tools
from tpuctl.jobs.requirements.python_archives import python_builds
from tpuctl.jobs.requirements.runtime_packages import runtime_packages
from tpuctl.model.events import Emit
from tpuctl.model.jobs.installation import PythonBuild, object_name
from tpuctl.model.stack.stack import Stack

MINORS = ("3.12", "3.11", "3.13", "3.14")  # in order of preference, as in `installer.py`


async def controller_source(stack: Stack, cloud: Cloud, emit: Emit) -> dict[str, str]:
    """Where the controller finds a Python and tpuctl's packages, which are stored in the bucket
    first unless they are there: the `source` of `installer.py`.

    Raises Refused if this computer cannot have them, and Usage.
    """
    python = _build(platform.machine() if cloud.endpoint.is_local else "x86_64")
    packages = runtime_packages(python)
    stored = await store_tools((python, packages), cloud.objects(stack.bucket), emit)
    return {
        "bucket": stack.bucket,
        "python": object_name(stored[python.key]),
        "packages": object_name(stored[packages.key]),
    }


def _build(architecture: str) -> PythonBuild:
    """The newest build of the preferred minor version."""
    builds = python_builds(architecture)
    for minor in MINORS:
        for build in builds:
            if build.minor == minor:
                return build
    raise Usage(
        "No Python for the controller",
        f"uv knows no Python {MINORS[0]} for Linux on {architecture}",
        hint="Unset UV_PYTHON_DOWNLOADS_JSON_URL, or name a list that has it.",
    )
