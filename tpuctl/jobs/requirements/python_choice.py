"""Chooses the Python that a job brings, for which its requirements resolve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tpuctl.errors import Refused
from tpuctl.model.jobs.installation import PythonBuild
from tpuctl.model.scripts.python_request import PythonRequest

MAX_ALTERNATIVES = 6  # of versions, in messages


@dataclass(frozen=True)
class PythonChoice:
    """The Python of a job: a build that it brings, or its image's; and what asked for it, if
    anything."""

    build: PythonBuild | None = None
    where: str = ""

    @property
    def version(self) -> str | None:
        """The version that the job brings; None for the image's."""
        return self.build.version if self.build is not None else None

    def __str__(self) -> str:
        return f"Python {self.build.version} ({self.where})" if self.build is not None else ""


def choose_python(
    request: PythonRequest | None,
    image: str,
    builds: Callable[[], Sequence[PythonBuild]],
    problem: Callable[[str, bool], str | None],
) -> PythonChoice:
    """The image's Python, a minor version as in "3.10" or unknown, if that is allowed; otherwise
    the newest build that is, and for whose minor version the requirements have no `problem`: first
    without building any from sources, then with that.

    `builds` lists what exists for the workers' platform. Raises Refused.
    """
    if request is None or request.is_image or (image and request.allows_image(image)):
        return PythonChoice(where="" if request is None else request.where)
    existing = builds()
    candidates = _newest_by_minor(build for build in existing if request.allows(build.version))
    if not candidates:
        raise _no_build(request, existing)
    problems: dict[str, str] = {}
    for may_build in (False, True):
        for build in candidates:
            reason = problem(build.minor, may_build)
            if reason is None:
                return PythonChoice(build, request.where)
            problems[build.minor] = f"Python {build.minor}: {reason}"
    raise Refused(
        "Requirements do not fit the job's Python",
        f"{request.where} asks for {request}.\n" + "\n".join(problems.values()),
        hint="Ask for another Python, or change the requirements.",
        where=request.where,
    )


def _newest_by_minor(builds: Iterable[PythonBuild]) -> list[PythonBuild]:
    """The newest build of each minor version, the newest first, of builds in that order."""
    newest: dict[str, PythonBuild] = {}
    for build in builds:
        newest.setdefault(build.minor, build)
    return list(newest.values())


def _no_build(request: PythonRequest, builds: Sequence[PythonBuild]) -> Refused:
    """What exists instead: of the minor version that was asked for, otherwise of all."""
    minor = ".".join(request.exact.split(".")[:2])
    versions = [build.version for build in builds if build.minor == minor] or [
        build.version for build in _newest_by_minor(builds)
    ]
    platform = f" for {_platform(builds[0])}" if builds else ""
    return Refused(
        "No such Python",
        f"{request.where} asks for {request}, of which no build exists{platform}; these do: "
        + ", ".join(versions[:MAX_ALTERNATIVES]),
        hint=f"Ask for one that exists, for example\n    {request.setting(versions[0])}"
        if versions
        else "Set UV_PYTHON_DOWNLOADS_JSON_URL to a list with builds for the workers.",
        where=request.where,
    )


def _platform(build: PythonBuild) -> str:
    """As in "linux x86_64", of "cpython-3.12.11-linux-x86_64-gnu"."""
    return " ".join(build.request.split("-")[2:4])
