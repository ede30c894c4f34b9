"""The framework that a job uses, as its requirements and imports tell.

It decides the runtime that `tpu.runtime: auto` stands for, and the workers that `job.workers: auto`
starts the script on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from tpuctl.files import is_generated_folder, read_file
from tpuctl.model.scripts.requirement_files import Requirement, declared

Framework = Literal["tensorflow", "jax", "torch", "other"]
TITLES: Mapping[Framework, str] = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "other": "another framework",
}

# The packages by which PyTorch computes on TPUs. torch-tpu succeeds PyTorch/XLA.
TORCH_DRIVERS = ("torch-tpu", "torch-xla")
# Top-level modules. PyTorch alone is not among them: it may only load data.
MODULES: Mapping[str, Framework] = {
    **dict.fromkeys(("equinox", "flax", "haiku", "jax", "jaxlib", "optax", "orbax"), "jax"),
    **dict.fromkeys(("torch_tpu", "torch_xla"), "torch"),
    **dict.fromkeys(("keras", "tensorflow", "tf_keras"), "tensorflow"),
}
# Packages, by their normalized names.
PACKAGES: Mapping[str, Framework] = {
    **dict.fromkeys(("dm-haiku", "equinox", "flax", "jax", "jaxlib", "optax"), "jax"),
    **dict.fromkeys(("orbax", "orbax-checkpoint"), "jax"),
    **dict.fromkeys(TORCH_DRIVERS, "torch"),
    **dict.fromkeys(("keras", "tensorflow", "tensorflow-cpu", "tf-keras"), "tensorflow"),
}
# Of which a program has one only if JAX runs its model; it may load data with TensorFlow.
JAX_LIBRARIES = {"dm-haiku", "equinox", "flax", "haiku", "optax", "orbax", "orbax-checkpoint"}
# The backend of Keras 3, as scripts set it in `os.environ`.
KERAS_BACKEND = re.compile(
    rb"""(?m)^[^#\n]*\bKERAS_BACKEND["']?\s*\]?\s*[=,:]\s*["'](tensorflow|jax|torch)["']"""
)
IMPORT = re.compile(rb"(?m)^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)")
MAX_FOLDERS, MAX_SCRIPTS, MAX_BYTES = 50, 200, 1 << 20


class FrameworkChoice(NamedTuple):
    """A framework, and what tells: `job.framework`, or a file relative to the stack's folder."""

    framework: Framework
    because: str

    def __str__(self) -> str:
        return f"{TITLES[self.framework]} ({self.because})"


def is_tensorflow(choice: FrameworkChoice | None) -> bool:
    """Whether jobs count as TensorFlow's, as they do if nothing tells."""
    return choice is None or choice.framework == "tensorflow"


def framework_of_modules(
    modules: Iterable[str], keras_backend: str = "tensorflow"
) -> Framework | None:
    """The framework of a script that imports these modules; None if they do not tell.

    A script of several frameworks is one of TensorFlow's, which its images can run, unless it
    imports a library for JAX.
    """
    names = {keras_backend if name == "keras" else name for name in modules}
    frameworks = {MODULES[name] for name in names if name in MODULES}
    return _only(frameworks - ({"tensorflow"} if names & JAX_LIBRARIES else set()))


def framework_of_script(script: Path) -> Framework | None:
    """The framework that a script imports; None if it imports none or cannot be read."""
    source = _source(script)
    backends = KERAS_BACKEND.findall(source) or [b"tensorflow"]
    return framework_of_modules(_modules(source), backends[-1].decode())


def modules_of_script(script: Path) -> set[str]:
    """The top-level modules that a script imports; none if it cannot be read."""
    return _modules(_source(script))


def _source(script: Path) -> bytes:
    try:
        return read_file(script, MAX_BYTES)
    except OSError:
        return b""


def _modules(source: bytes) -> set[str]:
    return {name.decode() for name in IMPORT.findall(source)}


def framework_of_requirements(requirements: Iterable[Requirement]) -> Framework | None:
    """The framework that drives the TPU, by a package for it, or else the one that is installed.

    JAX programs often install TensorFlow too, to load data: those that install a library for JAX,
    or the TensorFlow that runs on CPUs alone, do. What a lock installs only for other packages
    does not tell.
    """
    requirements = [requirement for requirement in requirements if not requirement.is_transitive]
    drivers: set[Framework] = set()
    for requirement in requirements:
        if requirement.name == "jax" and "tpu" in requirement.extras:
            drivers.add("jax")
        elif requirement.name in TORCH_DRIVERS:
            drivers.add("torch")
        elif requirement.name == "tensorflow-tpu":
            drivers.add("tensorflow")
    if len(drivers) == 1:
        return drivers.pop()
    names = {requirement.name for requirement in requirements}
    frameworks = drivers | {PACKAGES[name] for name in names if name in PACKAGES}
    loads_data = names & JAX_LIBRARIES or ("jax" in frameworks and "tensorflow-cpu" in names)
    return _only(frameworks - ({"tensorflow"} - drivers if loads_data else set()))


def _only(frameworks: set[Framework]) -> Framework | None:
    if "tensorflow" in frameworks:
        return "tensorflow"
    return frameworks.pop() if len(frameworks) == 1 else None


def framework_in(folder: Path, requirements: str | None = None) -> FrameworkChoice | None:
    """The framework of the jobs in a folder and in the folders directly below it.

    Their requirements tell (`requirements` names a file in each folder, by default a lock,
    requirements.txt or pyproject.toml), or else the imports of their scripts. None if there are
    none or several: `up` does not know which job follows. Reads a limited number of files.
    """
    folders = [folder, *_folders_in(folder)]
    by_requirements = {
        _relative(listed[0].path, folder): framework
        for candidate in folders
        if (listed := declared(candidate, requirements))
        and (framework := framework_of_requirements(listed)) is not None
    }
    choices = by_requirements or dict(_scripts_in(folders, folder))
    if len({*choices.values()}) != 1:
        return None
    because, framework = next(iter(choices.items()))
    return FrameworkChoice(framework, because)


def _folders_in(folder: Path) -> list[Path]:
    try:
        folders = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
    return [path for path in folders if not is_generated_folder(path)][:MAX_FOLDERS]


def _scripts_in(folders: Iterable[Path], root: Path) -> Iterator[tuple[str, Framework]]:
    scripts = (script for folder in folders for script in sorted(folder.glob("*.py")))
    for script, _ in zip(scripts, range(MAX_SCRIPTS), strict=False):
        framework = framework_of_script(script)
        if framework is not None:
            yield _relative(script, root), framework


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
