"""Whether the image on Google has a Python that a job's packages exist for.

Where this computer has no such Python, machines of the local cloud have another: then packages may
be installed there that the image would refuse, after the TPU is paid for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tpuctl.errors import Refused, Usage
from tpuctl.jobs.requirements.resolution import conflict
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.scripts.python_request import KEY, PythonRequest, file_request, script_request
from tpuctl.model.scripts.requirement_files import Requirement, declared, parse_requirement
from tpuctl.model.scripts.script_metadata import read_script_metadata


def require_installable_on_image(
    image: str,
    machine: str,
    installation: Installation,
    folder: Path,
    script: Path | None = None,
) -> None:
    """Raise Refused, with file and line, if the machine of the local cloud has another Python than
    its real image ("3.10"), and the job's files do not allow the image's, or its packages can be
    installed on the machine's only.

    May take seconds, and asks the package index. Nothing is raised where it cannot be asked, nor
    for packages that cannot be installed on either.
    """
    if image == machine or installation.python is not None:
        return
    for request in _requests(installation, folder, script):
        if not request.allows_image(image):
            raise _refused(
                f"the image has Python {image}, and the job requires {request.specifier}",
                request.where,
                str(request.specifier),
                machine,
            )
    if installation.lock is not None:
        return
    reason = _conflict(image, installation, folder)
    if reason is None or _conflict(machine, installation, folder) is not None:
        return
    requirement = _culprit(reason, _requirements(installation, folder, script))
    if requirement is None:
        where, subject = _source(installation, folder, script), "what the job installs"
    else:
        where, subject = f"{requirement.path}:{requirement.line}", requirement.text
    raise _refused(
        f"the image has Python {image}, for which {subject} cannot be installed",
        where,
        machine,
        machine,
    )


def _refused(detail: str, where: str, python: str, machine: str) -> Refused:
    return Refused(
        "Packages need another Python than the image's",
        f"{detail}; this computer's machine has Python {machine}",
        where=where,
        hint=f'Let the job bring its Python. Set\n    job: {{python: "{python}"}}',
    )


def _requests(
    installation: Installation, folder: Path, script: Path | None
) -> Iterator[PythonRequest]:
    """`requires-python` of the script, of the project and of further packages."""
    with suppress(Usage):  # reported when the job's Python is chosen
        if request := script_request(script):
            yield request
    for name in _folders(installation):
        with suppress(OSError, Usage):
            if request := file_request(folder / name / "pyproject.toml", "project", KEY):
                yield request


def _folders(installation: Installation) -> list[str]:
    """The folders whose pyproject.toml counts."""
    local = [name.partition("[")[0] for name in installation.dependencies if name.startswith("./")]
    listed = [*filter(None, [installation.project]), *installation.members, *local]
    is_listed_there = bool(installation.dependencies) and not listed
    return listed or (["."] if is_listed_there else [])


def _conflict(python: str, installation: Installation, folder: Path) -> str | None:
    """Why no versions fit this Python, as uv explains it; None if some do, or it is unknown."""
    return conflict(installation, folder, python, "x86_64", os.environ, may_build=True)


def _requirements(
    installation: Installation, folder: Path, script: Path | None
) -> list[Requirement]:
    """The requirements with their lines, in the order of the files."""
    listed = declared(folder, installation.requirements)
    metadata = read_script_metadata(script)
    if metadata is not None and script is not None:
        lines = script.read_text("utf-8-sig").split("\n")
        for text in metadata.dependencies:
            number = next((n for n, line in enumerate(lines, 1) if text in line), metadata.line)
            listed += parse_requirement(script, number, text)
    return listed


def _culprit(reason: str, requirements: Sequence[Requirement]) -> Requirement | None:
    """The requirement that uv blames: one that it says is required, else one that it mentions."""
    words = " ".join(reason.split())
    blamed = " ".join(re.findall(r"you require ([^,]+)", words))
    for text in (blamed, words):
        for requirement in requirements:
            if re.search(rf"(?<![\w-]){re.escape(requirement.name)}(?![\w-])", text):
                return requirement
    return None


def _source(installation: Installation, folder: Path, script: Path | None) -> str:
    """The file that requirements without a line come from."""
    if installation.requirements:
        return str(folder / installation.requirements)
    is_script = bool(installation.packages) and not installation.dependencies
    return str(script) if is_script else str(folder / "pyproject.toml")
