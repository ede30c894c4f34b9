"""TPU505 framework-versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tpuctl.catalog import FIRST_LIBTPU
from tpuctl.model.scripts.requirement_files import Requirement, allows, required
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import installed
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU505",
    name="framework-versions",
    severity=Severity.error,
    summary="Versions of JAX, PyTorch/XLA, and libtpu that do not work together",
    rationale=(
        "Each release of `jax[tpu]` requires one release of libtpu and its own jaxlib, and pip "
        "rejects requirements that name others. `torch_xla` is built for one release of `torch`, "
        "which pip does not check: with another, its import fails with an undefined symbol. "
        "JAX has no support for TPUs of its own: without libtpu it trains on the machine's CPUs. "
        "Images with Ubuntu 22.04, which are those of all generations before TPU7x, have Python "
        "3.10, and JAX 0.7 and later require Python 3.11. "
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
    """What a release requires, according to its metadata on PyPI (read 2026-11-27)."""

    jaxlib: str  # the lowest; the highest is the release's own number
    libtpu: str  # with the extra `tpu`; empty for a nightly build, which PyPI does not have
    python: str  # the lowest
    jaxlib_for_tpu: str = ""  # the lowest with the extra `tpu`, if that is another


JAX = {
    "0.10.2": Release("0.10.1", "==0.0.42.*", "3.11", "0.10.2"),
    "0.10.1": Release("0.10.1", "==0.0.41.*", "3.11"),
    "0.10.0": Release("0.10.0", "==0.0.40.*", "3.11"),
    "0.9.2": Release("0.9.2", "==0.0.37.*", "3.11"),
    "0.9.1": Release("0.9.1", "==0.0.35.*", "3.11"),
    "0.9.0.1": Release("0.9.0.1", "==0.0.34.*", "3.11"),
    "0.9.0": Release("0.9.0", "==0.0.34.*", "3.11"),
    "0.8.3": Release("0.8.2", "==0.0.32.*", "3.11", "0.8.3"),
    "0.8.2": Release("0.8.2", "==0.0.32.*", "3.11"),
    "0.8.1": Release("0.8.1", "==0.0.30.*", "3.11"),
    "0.8.0": Release("0.8.0", "==0.0.24.*", "3.11"),
    "0.7.2": Release("0.7.2", "==0.0.23", "3.11"),
    "0.7.1": Release("0.7.1", "==0.0.20.*", "3.11"),
    "0.7.0": Release("0.7.0", "==0.0.19.*", "3.11"),
    "0.6.2": Release("0.6.2", "==0.0.17.*", "3.10"),
    "0.6.1": Release("0.6.1", "==0.0.15.*", "3.10"),
    "0.6.0": Release("0.6.0", "==0.0.13.*", "3.10"),
    "0.5.3": Release("0.5.3", "==0.0.11.*", "3.10"),
    "0.5.2": Release("0.5.1", "==0.0.10.*", "3.10"),
    "0.5.1": Release("0.5.1", "==0.0.10", "3.10"),
    "0.5.0": Release("0.5.0", "==0.0.8", "3.10"),
    "0.4.38": Release("0.4.38", "==0.0.7", "3.10"),
    "0.4.37": Release("0.4.36", "==0.0.6", "3.10"),
    "0.4.36": Release("0.4.36", "==0.0.5", "3.10"),
    "0.4.35": Release("0.4.34", "==0.0.2", "3.10"),
    "0.4.34": Release("0.4.34", "", "3.10"),
    "0.4.33": Release("0.4.33", "", "3.10"),
    "0.4.31": Release("0.4.30", "", "3.10", "0.4.31"),
    "0.4.30": Release("0.4.27", "", "3.9", "0.4.30"),
}
# These also require libtpu-nightly, in a version that removes its files and is not on PyPI.
JAX_WITH_NIGHTLY = {"0.4.35", "0.4.36", "0.4.37", "0.4.38", "0.5.0"}
# The libtpu that other packages require; torch_xla with the extra `tpu`.
TORCH_XLA = {
    "2.9.0": "==0.0.21",
    "2.8.1": "==0.0.17",
    "2.7.0": "==0.0.11.1",
    "2.6.1": "==0.0.7.1",
    "2.5.1": "",
    "2.5.0": "",
    "2.4.0": "",
    "2.3.0": "",
}
TENSORFLOW_TPU = {
    "2.20.0": "~=0.0.14",
    "2.19.1": "==0.0.10",
    "2.18.0": "==2.18.0",
    "2.17.1": "==2.17.1",
}
# The first releases that know a generation; all others are known to every release. jax:
# `_TPU_PCI_DEVICE_IDS` in its `hardware_utils.py`. torch_xla: the IDs in its `_internal/tpu.py`.
FIRST_JAX = {"v6e": "0.4.33", "tpu7x": "0.7.0"}
FIRST_TORCH_XLA = {"v6e": "2.5.0", "tpu7x": "2.9.0"}
PIN = re.compile(r"\s*===?\s*v?(\d+(?:\.\d+)*)\s*")
EXACT = re.compile(r"==\s*(\d+(?:\.\d+)*)(?:\.\*)?")  # a release or all of its patches
NIGHTLY = (
    "its libtpu is a nightly build that is not on PyPI: without --find-links pip finds no version"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    groups = [required(project.root, target.requirements, project.script.path)]
    of_calls = groupby(installed(project), key=lambda install: install.call)
    groups += [[install.package for install in installs] for _, installs in of_calls]
    for group in groups:
        requirements = {requirement.name: requirement for requirement in group}
        yield from _jax(requirements, target.python)
        yield from _torch(requirements)
        if target.image and target.tensorflow is None:
            yield from _torch_driver(requirements)
        yield from _libtpu(requirements)
        yield from _generation(requirements, target.generation)


def _jax(requirements: dict[str, Requirement], python: str) -> Iterator[Finding]:
    jax, jaxlib = requirements.get("jax"), requirements.get("jaxlib")
    if jax is None:
        return
    version, lib = _pin(jax), _pin(jaxlib) if jaxlib is not None else None
    release = JAX.get(version or "")
    if release is not None and jaxlib is not None and lib is not None:
        lowest = ("tpu" in jax.extras and release.jaxlib_for_tpu) or release.jaxlib
        if not allows(f">={lowest},<={version}", lib):
            text = f"{jax.text} requires jaxlib {_between(lowest, str(version))}"
            yield _finding(jaxlib, f"{jaxlib.text} cannot be installed: {text}", "Remove jaxlib.")
    if not any(allows(jax.clauses, version) for version in _for_python(python)) and any(
        allows(jax.clauses, version) for version in JAX
    ):
        newest = next(iter(_for_python(python)))
        yield _finding(
            jax,
            f"{jax.text} needs Python {release.python if release else '3.11'} or later, and the "
            f"image has Python {python}",
            f"Use {jax.name}{'[tpu]' if 'tpu' in jax.extras else ''}<={newest}, or install another "
            "Python by job.setup.",
            Severity.risk,
        )
    drivers = {"libtpu", "libtpu-nightly", "torch-xla", "tensorflow-tpu"}
    if "tpu" not in jax.extras and not drivers & requirements.keys():
        yield _finding(
            jax,
            f"{jax.text} installs no libtpu: on a TPU VM, JAX uses the CPU",
            f"Use jax[tpu]{jax.clauses.strip()}.",
            Severity.risk,
        )


def _for_python(python: str) -> Iterator[str]:
    """JAX's releases for this Python, newest first."""
    return (version for version, release in JAX.items() if allows(f">={release.python}", python))


def _torch(requirements: dict[str, Requirement]) -> Iterator[Finding]:
    torch, xla = requirements.get("torch"), requirements.get("torch-xla")
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


def _torch_driver(requirements: dict[str, Requirement]) -> Iterator[Finding]:
    """PyTorch/XLA without libtpu, for an image without it."""
    xla = requirements.get("torch-xla")
    extras = {extra for each in requirements.values() for extra in each.extras}
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
        is_nightly = not clauses or (is_jax and _pin(requirement) in JAX_WITH_NIGHTLY)
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
    for name, table in (
        ("jax", {version: release.libtpu for version, release in JAX.items()}),
        ("torch-xla", TORCH_XLA),
        ("tensorflow-tpu", TENSORFLOW_TPU),
    ):
        requirement = requirements.get(name)
        if requirement is None or (name != "tensorflow-tpu" and "tpu" not in requirement.extras):
            continue
        version = _pin(requirement)
        if version in table:
            yield requirement, table[version]
    libtpu = requirements.get("libtpu")
    if libtpu is not None and _pin(libtpu) is not None:
        yield libtpu, libtpu.clauses.strip()


def _generation(requirements: dict[str, Requirement], generation: str) -> Iterator[Finding]:
    """Releases that are older than the stack's generation of TPUs."""
    if generation not in FIRST_JAX:
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
    for name, table, firsts in (("jax", JAX, FIRST_JAX), ("torch-xla", TORCH_XLA, FIRST_TORCH_XLA)):
        package = requirements.get(name)
        allowed = [version for version in table if package and allows(package.clauses, version)]
        is_old = not any(allows(f">={firsts[generation]}", version) for version in allowed)
        if package is not None and allowed and is_old:
            yield _finding(
                package,
                f"{package.text} does not recognize the chips of {generation}",
                f"Use {package.name}>={firsts[generation]}.",
                Severity.risk,
            )


def _overlap(left: str, right: str) -> bool:
    """Whether a version may meet both; one of them names a version or all of its patches."""
    for clauses, others in ((left, right), (right, left)):
        exact = EXACT.fullmatch(clauses)
        if exact is not None and allows(others, exact[1]):
            return True
    return False


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
