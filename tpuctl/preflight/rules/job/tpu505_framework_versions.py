"""TPU505 framework-versions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tpuctl.catalog import FIRST_LIBTPU
from tpuctl.model.scripts.requirement_files import Requirement, allows
from tpuctl.preflight.analysis.framework_wheels import (
    FUTURE,
    allowed_wheels,
    python_minors,
    range_text,
    releases_for,
    wheels_of,
)
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import (
    installed,
    once_per_folder,
    requirements_of,
)
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU505",
    name="framework-versions",
    severity=Severity.error,
    summary="Versions of JAX, PyTorch, and libtpu that do not work together",
    rationale=(
        "Each release of `jax[tpu]` requires one release of libtpu and its own jaxlib, and pip "
        "rejects requirements that name others. `torch_xla` is built for one release of `torch`, "
        "which pip does not check: with another, its import fails with an undefined symbol. "
        "Its successor `torch_tpu` 0.2 requires torch 2.11 to 2.15, so that no torch fits both. "
        "JAX has no support for TPUs of its own: without libtpu it trains on the machine's CPUs. "
        "Each release has wheels for some versions of Python: JAX 0.7 and later need 3.11, JAX "
        "0.11 and later 3.12. Images with Ubuntu 22.04, those of all generations before "
        "TPU7x, have Python 3.10. A job that asks for another in `job.python`, `.python-version`, "
        "or `requires-python` brings it, and is checked for that one. "
        "Releases older than a generation of TPUs do not know it: the compilers of the releases of "
        "libtpu on PyPI were asked for the topologies of each generation, and `jax` and "
        "`torch_xla` list the PCI device IDs of the chips that they look for."
    ),
    bad="""\
import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "torch==2.9.0", "torch_xla==2.8.1"])
""",
    good="""\
import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "torch==2.9.0", "torch_xla==2.9.0"])
""",
)


class Release(NamedTuple):
    """What a release of JAX requires, as in the rows of the table."""

    jaxlib: str  # the lowest; the highest is the release's own number
    libtpu: str  # with the extra `tpu`; empty for a nightly build, which PyPI does not have
    python: str  # the lowest
    jaxlib_for_tpu: str = ""  # the lowest with the extra `tpu`, if that is another


BRINGS_LIBTPU = ("tensorflow-tpu", "torch-tpu")  # without an extra
DATA = Path(__file__).with_name("tpu505_releases.json")
PIN = re.compile(r"\s*===?\s*v?(\d+(?:\.\d+)*)\s*")
EXACT = re.compile(r"==\s*(\d+(?:\.\d+)*)(?:\.\*)?")  # a release or all of its patches
NIGHTLY = (
    "its libtpu is a nightly build that is not on PyPI: without --find-links pip finds no version"
)


@cache
def _data() -> dict[str, Any]:
    """Releases and what they require; the file describes its tables."""
    tables: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return tables


@cache
def _jax_releases() -> dict[str, Release]:
    """JAX's releases, newest first."""
    return {version: Release(*row) for version, row in _data()["jax"].items()}


def _libtpu_by_release() -> dict[str, dict[str, str]]:
    """The libtpu that each release of a package requires; empty for a nightly build."""
    jax = {version: release.libtpu for version, release in _jax_releases().items()}
    return {"jax": jax, **_data()["libtpu"]}


def find(project: Project, target: Target) -> Iterator[Finding]:
    yield from _of_job(project, target)
    for _, installs in groupby(installed(project), key=lambda install: install.call):
        yield from _of_group([install.package for install in installs], target)


@once_per_folder
def _of_job(project: Project, target: Target) -> Iterator[Finding]:
    yield from _of_group(requirements_of(project, target), target)


def _of_group(group: Sequence[Requirement], target: Target) -> Iterator[Finding]:
    if not group:  # the tables are read only if there are requirements
        return
    requirements = {entry.name: entry for entry in group if not entry.is_conditional}
    yield from _pythons(requirements, target)
    yield from _jax(requirements, has_driver=any(map(_may_bring_libtpu, group)))
    yield from _torch(requirements)
    if target.image and target.tensorflow is None:
        yield from _torch_driver(requirements)
    yield from _libtpu(requirements)
    yield from _generation(requirements, target.generation)


def _may_bring_libtpu(requirement: Requirement) -> bool:
    drivers = ("libtpu", "libtpu-nightly", "torch-xla", *BRINGS_LIBTPU)
    return requirement.name in drivers or "tpu" in requirement.extras


def _jax(requirements: dict[str, Requirement], *, has_driver: bool) -> Iterator[Finding]:
    jax, jaxlib = requirements.get("jax"), requirements.get("jaxlib")
    if jax is None:
        return
    version, lib = _pin(jax), _pin(jaxlib) if jaxlib is not None else None
    release = _jax_releases().get(version or "")
    if release is not None and jaxlib is not None and lib is not None:
        lowest = ("tpu" in jax.extras and release.jaxlib_for_tpu) or release.jaxlib
        if not allows(f">={lowest},<={version}", lib):
            text = f"{jax.text} requires jaxlib {_between(lowest, str(version))}"
            yield _finding(jaxlib, f"{jaxlib.text} cannot be installed: {text}", "Remove jaxlib.")
    if not has_driver:
        yield _finding(
            jax,
            f"{jax.text} installs no libtpu: on a TPU VM, JAX uses the CPU",
            f"Use jax[tpu]{jax.clauses.strip()}.",
            Severity.risk,
        )


def _pythons(requirements: dict[str, Requirement], target: Target) -> Iterator[Finding]:
    """Requirements without a release for the job's Python, or none of them for the same one."""
    releases = {
        requirement: wheels
        for requirement in requirements.values()
        if (wheels := _installable(requirement))
    }
    advised, remaining = _advised(releases.values()), set(_candidates(target))
    for requirement, wheels in releases.items():
        supported = {python for pythons in wheels.values() for python in pythons}
        if supported & remaining:
            remaining &= supported
            continue
        is_alone = not supported & set(_candidates(target))
        needs = f"{requirement.text} needs Python {range_text(supported)}"
        if is_alone:
            text = f"{needs}, and {target.python_text}"
        else:
            text = f"{needs}, and the other requirements Python {range_text(remaining)}"
        is_certain = _is_certain(requirement, target, supported)
        severity = RULE.severity if is_certain else Severity.risk
        hint = _python_hint(requirement, target, advised)
        yield _finding(requirement, text, hint, severity)


def _candidates(target: Target) -> tuple[str, ...]:
    """The Pythons that the job may run on."""
    return target.pythons or (target.python,)


def _installable(requirement: Requirement) -> dict[str, tuple[str, ...]]:
    """The Pythons of each release that a requirement allows, for which there is a libtpu, too."""
    wheels = dict(allowed_wheels(requirement))
    pins = _libtpu_by_release().get(requirement.name, {})
    if requirement.name not in BRINGS_LIBTPU and "tpu" not in requirement.extras:
        return wheels
    for version, pythons in wheels.items():
        drivers = [
            supported
            for release, supported in wheels_of("libtpu").items()
            if pins.get(version) and allows(pins[version], release)
        ]
        if drivers:  # otherwise it is not on PyPI
            wheels[version] = tuple(
                python for python in pythons if any(python in driver for driver in drivers)
            )
    return {version: pythons for version, pythons in wheels.items() if pythons}


def _advised(releases: Iterable[dict[str, tuple[str, ...]]]) -> str | None:
    """The oldest Python for which all requirements have their newest release, or else any; None if
    there is none."""
    newest, supported = set(python_minors()), set(python_minors())
    for wheels in releases:
        newest &= set(next(iter(wheels.values())))
        supported &= {python for pythons in wheels.values() for python in pythons}
    return next((python for python in python_minors() if python in (newest or supported)), None)


def _is_certain(requirement: Requirement, target: Target, supported: set[str]) -> bool:
    """Whether neither a later release nor another index can have it for the job's Python."""
    if requirement.path.suffix != ".py" and _names_other_index(requirement.path):
        return False
    minors = python_minors()
    is_newer = minors.index(_candidates(target)[0]) > max(map(minors.index, supported))
    return not (is_newer and allows(requirement.clauses, FUTURE))


def _python_hint(requirement: Requirement, target: Target, advised: str | None) -> str:
    """Another Python, if all requirements have releases for it, or an older release."""
    older = [
        version
        for python in _candidates(target)
        for version in releases_for(requirement.name, python)[:1]
    ]
    extras = requirement.text.removesuffix(requirement.clauses.strip())
    use = f"Use {extras}<={older[0]}" if older else ""
    if requirement.is_locked:
        use = f"Lock a release for Python {target.python}"
    if advised is None:
        return f"{use}." if use else "Use releases that support the same Python."
    setting = f"\n    job: {{python: '{advised}'}}"
    if use:
        return f"{use}, or set the job's Python:{setting}"
    return f"Set the job's Python:{setting}"


def _torch(requirements: dict[str, Requirement]) -> Iterator[Finding]:
    torch, xla = requirements.get("torch"), requirements.get("torch-xla")
    tpu = requirements.get("torch-tpu")
    if xla is not None and tpu is not None:
        yield _finding(
            xla,
            f"{xla.text} and {tpu.text} need different releases of torch",
            "Require one of them.",
        )
        return
    if torch is not None and tpu is not None:
        yield from _torch_of_torch_tpu(torch, tpu)
    if torch is None or xla is None:
        return
    version, xla_version = _pin(torch), _pin(xla)
    if version is not None and xla_version is not None and _minor(version) != _minor(xla_version):
        yield _finding(
            torch,
            f"{xla.text} was built for torch {_minor(xla_version)}, not {version}: importing "
            "torch_xla fails with an undefined symbol",
            f"Pin both to one release: torch~={_minor(xla_version)}.0",
        )


def _torch_of_torch_tpu(torch: Requirement, tpu: Requirement) -> Iterator[Finding]:
    version, required = _pin(torch), _data()["torch_of_torch_tpu"].get(_pin(tpu) or "")
    if version is not None and required is not None and not allows(required, version):
        yield _finding(
            torch,
            f"{torch.text} cannot be installed: {tpu.text} requires torch{required}",
            "Use a torch in that range.",
        )


def _torch_driver(requirements: dict[str, Requirement]) -> Iterator[Finding]:
    """PyTorch/XLA without libtpu, for an image without it."""
    xla = requirements.get("torch-xla")
    extras = {extra for requirement in requirements.values() for extra in requirement.extras}
    if xla is None or "tpu" in extras or {"libtpu", "libtpu-nightly"} & requirements.keys():
        return
    yield _finding(
        xla,
        f"{xla.text} installs no libtpu, and the image has none: no TPU is found",
        f"Use torch_xla[tpu]{xla.clauses.strip()}.",
        Severity.risk,
    )


def _libtpu(requirements: dict[str, Requirement]) -> Iterator[Finding]:
    """Packages that require different releases of libtpu, or one that PyPI does not have."""
    first: tuple[Requirement, str] | None = None
    for requirement, clauses in _libtpu_clauses(requirements):
        is_jax = requirement.name == "jax"
        is_nightly = not clauses or (is_jax and _pin(requirement) in _data()["jax_with_nightly"])
        is_script = requirement.path.suffix == ".py"
        if is_nightly and not is_script and not _names_other_index(requirement.path):
            text = f"{requirement.text} cannot be installed: {NIGHTLY}"
            yield _finding(requirement, text, f"Use a later release of {requirement.name}.")
        if not clauses:
            continue
        if first is None:
            first = requirement, clauses
        elif not _overlap(first[1], clauses):
            other, its_clauses = first
            text = f"{other.text} needs libtpu{its_clauses}"
            needs = "" if requirement.name == "libtpu" else f" needs libtpu{clauses}, and"
            yield _finding(
                requirement,
                f"{requirement.text} cannot be installed:{needs} {text}",
                "Name one package that installs libtpu.",
            )


def _libtpu_clauses(requirements: dict[str, Requirement]) -> Iterator[tuple[Requirement, str]]:
    for name, table in _libtpu_by_release().items():
        requirement = requirements.get(name)
        if requirement is None or (name not in BRINGS_LIBTPU and "tpu" not in requirement.extras):
            continue
        version = _pin(requirement)
        if version in table:
            yield requirement, table[version]
    libtpu = requirements.get("libtpu")
    if libtpu is not None and _pin(libtpu) is not None:
        yield libtpu, libtpu.clauses.strip()


def _generation(requirements: dict[str, Requirement], generation: str) -> Iterator[Finding]:
    """Releases that are older than the stack's generation of TPUs."""
    if generation not in _data()["first"]["jax"]:
        return
    first = FIRST_LIBTPU[generation]
    for requirement, clauses in _libtpu_clauses(requirements):
        exact = EXACT.fullmatch(clauses)
        if exact is not None and not allows(f">={first}", exact[1]):
            needs = "" if requirement.name == "libtpu" else f" needs libtpu{clauses}, which"
            yield _finding(
                requirement,
                f"{requirement.text}{needs} cannot compile for {generation}",
                f"Use a release with libtpu {first} or later.",
            )
    releases = _libtpu_by_release()
    for name, firsts in _data()["first"].items():
        package = requirements.get(name)
        allowed = [
            release for release in releases[name] if package and allows(package.clauses, release)
        ]
        is_old = not any(allows(f">={firsts[generation]}", version) for version in allowed)
        if package is not None and allowed and is_old:
            yield _finding(
                package,
                f"{package.text} does not recognize the chips of {generation}",
                f"Use {package.name}>={firsts[generation]}.",
                Severity.risk,
            )


def _overlap(left: str, right: str) -> bool:
    """Whether a version may meet both. If neither names a version or all of its patches, yes."""
    pairs = ((EXACT.fullmatch(left), right), (EXACT.fullmatch(right), left))
    exact = [(match[1], others) for match, others in pairs if match is not None]
    return not exact or any(allows(others, version) for version, others in exact)


def _names_other_index(file: Path) -> bool:
    text = file.read_text("utf-8", "replace")
    return (
        re.search(r"(?m)^\s*(-f|--find-links|-i|--index-url|--extra-index-url)\b", text) is not None
    )


def _pin(requirement: Requirement) -> str | None:
    match = PIN.fullmatch(requirement.clauses)
    return match[1] if match is not None else None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _between(lowest: str, highest: str) -> str:
    return highest if lowest == highest else f"{lowest} to {highest}"


def _finding(
    requirement: Requirement, text: str, hint: str, severity: Severity = RULE.severity
) -> Finding:
    return Finding(
        RULE.code, severity, requirement.path, requirement.line, requirement.column, text, hint
    )
