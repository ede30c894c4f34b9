"""Notes about dependencies in files that jobs do not install, such as environment.yml.

Jobs install what the metadata in a script lists, a lock (`uv.lock`, `pylock.toml`),
`requirements.txt`, or `pyproject.toml`, or what `job.requirements` names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tpuctl.model.scripts.toml_documents import parse_toml
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.requirements import once_per_folder, required_by
from tpuctl.preflight.findings import Target, UnreadRequirements

# Files with dependencies, and the command that writes them into requirements.txt.
OTHERS = {
    "environment.yml": "pip list --format=freeze > requirements.txt",
    "environment.yaml": "pip list --format=freeze > requirements.txt",
    "conda.yml": "pip list --format=freeze > requirements.txt",
    "conda.yaml": "pip list --format=freeze > requirements.txt",
    "pixi.toml": "pip list --format=freeze > requirements.txt",
    "Pipfile": "pipenv requirements > requirements.txt",
    "setup.py": "echo . > requirements.txt",
    "setup.cfg": "echo . > requirements.txt",
    "requirements.in": "pip-compile requirements.in",
}
# Modules of images that have TensorFlow.
WITH_TENSORFLOW = {
    *("absl", "google", "grpc", "h5py", "keras", "libtpu", "ml_dtypes", "numpy", "packaging"),
    *("requests", "setuptools", "six", "tensorboard", "tensorflow", "typing_extensions", "wrapt"),
}


def unread_requirements(project: Project, target: Target) -> Iterator[UnreadRequirements]:
    """A note for each such file, if nothing else is installed and the script imports a module that
    is neither Python's nor in its folder."""
    if target.requirements is not None or target.installs_more or any(_installs(project, target)):
        return
    files = _files(project, target)
    has_tensorflow = target.tensorflow is not None or not target.image
    image_modules = WITH_TENSORFLOW if has_tensorflow and not target.brings_python else set[str]()
    missing = sorted(_imported(project) - image_modules) if files else []
    if not missing:
        return
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    for path, advice in files:
        text = f"not read, and nothing else installs {missing[0]}{more}: {advice}"
        yield UnreadRequirements(path, 1, text)


@once_per_folder
def _installs(project: Project, target: Target) -> Iterator[bool]:
    root = project.root
    yield (root / "requirements.txt").exists() or any((root / "wheels").glob("*.whl"))
    yield "build-system" in _document(root) or bool(required_by(project, target))


def _document(root: Path) -> dict[str, object]:
    try:
        return parse_toml((root / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _imported(project: Project) -> set[str]:
    """The modules that are imported at module level and are neither Python's nor the project's."""
    tops = set[str]().union(*map(_tops, project)) - sys.stdlib_module_names
    folders = {project.root, project.root / "src", project.script.path.parent}
    return {top for top in tops if not any(_holds(project, folder, top) for folder in folders)}


def _tops(module: Module) -> set[str]:
    """The first parts of the names that a file imports at module level, cached."""
    if _tops not in module.cache:
        tops = module.cache[_tops] = set[str]()
        for node in module.tree.body:
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                tops.add((node.module or "").partition(".")[0])
    names: set[str] = module.cache[_tops]
    return names


def _holds(project: Project, folder: Path, top: str) -> bool:
    """Whether a folder has a module or package, cached."""
    key = _holds, folder, top
    if key not in project.shared:
        is_module = (folder / f"{top}.py").exists() or (folder / top).is_dir()
        project.shared[key] = is_module
    is_held: bool = project.shared[key]
    return is_held


@once_per_folder
def _files(project: Project, target: Target) -> Iterator[tuple[Path, str]]:
    """Files with dependencies, and what to do instead."""
    root = project.root
    for name, command in OTHERS.items():
        if (root / name).is_file():
            yield root / name, f"run `{command}`"
    others = [*root.glob("requirements[-_]*.txt"), *root.glob("requirements/*.txt")]
    for path in sorted(others):
        name = path.relative_to(root).as_posix()
        yield path, f"set job.requirements to {name}"
    tool = _document(root).get("tool")
    if isinstance(tool, dict) and "poetry" in tool:
        command = "poetry export --without-hashes --output requirements.txt"
        yield root / "pyproject.toml", f"run `{command}`, or add [build-system]"
