"""Whether requirements resolve for a Python and a platform, as uv finds from the index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tpuctl.interpreters import current
from tpuctl.jobs.requirements.uv_program import UvFailed, run_uv
from tpuctl.model.jobs.installation import Installation

PLATFORMS = {
    "x86_64": "x86_64-manylinux_2_35",
    "aarch64": "aarch64-manylinux_2_35",
}  # of Ubuntu 22.04
# pip's variables that name package indexes, and those of uv.
INDEX_VARIABLES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}
INDEXES = {*INDEX_VARIABLES, *INDEX_VARIABLES.values(), "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"}
# What uv prints if an index does not answer, or only with a password that machines may have.
NOT_ASKED = re.compile(
    r"error sending request|dns error|[Ff]ailed to (fetch|connect)|timed out|Could not connect|"
    r"Network connectivity is disabled|lack of valid authentication|\(40[13] "
)
LOCAL = re.compile(r"\s*(\./|\.$|-e\b)")


def conflict(
    installation: Installation,
    folder: Path,
    minor: str,
    architecture: str,
    variables: Mapping[str, str],
    *,
    may_build: bool,
) -> str | None:
    """Why requirements do not resolve for a Python ("3.12") on the workers, as uv explains it; None
    if they do, or if that cannot be found out here. Packages without wheels `may_build`.

    `variables` are the job's, which may name indexes. A lock and packages of the folder are not
    considered.
    """
    texts, files = _requirements(installation, folder)
    if not texts and not files:
        return None
    options = ["--python-version", minor, "--python-platform", PLATFORMS[architecture]]
    options += ["--python", current().path]  # otherwise uv looks for one of that version
    if installation.wheels is not None:
        options += ["--no-index", "--find-links", str(folder / installation.wheels)]
    environment = {
        INDEX_VARIABLES.get(name, name): value
        for name, value in variables.items()
        if name in INDEX_VARIABLES or name.startswith("UV_")
    }
    command = ["pip", "compile", "--quiet", "--no-header", *options, *files, *["-"][: len(texts)]]
    try:
        run_uv(
            [*command, *([] if may_build else ["--only-binary", ":all:"])],
            cwd=folder,
            variables=environment,
            stdin="\n".join(texts),
        )
    except UvFailed as error:
        return None if NOT_ASKED.search(error.output) else error.output
    return None


def _requirements(installation: Installation, folder: Path) -> tuple[list[str], list[str]]:
    """The requirements that an index has, and files of requirements."""
    listed = [*installation.dependencies, *installation.packages]
    texts = [requirement for requirement in listed if not LOCAL.match(requirement)]
    name = installation.requirements
    files = [name] if name is not None and (folder / name).is_file() else []
    return texts, files


def reason_of(output: str) -> str:
    """uv's explanation as one line, without its preface."""
    text = re.sub(r"[╰╭│├─▶×✗╞]+", " ", output)
    text = re.sub(r"\s+", " ", text).strip()
    text = text.removeprefix("error: ").removeprefix(
        "No solution found when resolving dependencies"
    )
    first, _, _ = text.lstrip(": ").removeprefix("cause: ").partition(" And because")
    return first.strip().rstrip(".")
