"""TPU508 requirement-unusable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tpuctl.model.scripts.lock_files import form_of
from tpuctl.model.scripts.requirement_files import PROJECT, included_files
from tpuctl.model.scripts.toml_documents import parse_toml
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import (
    metadata_of,
    once_per_folder,
    requirements_file,
)
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU508",
    name="requirement-unusable",
    severity=Severity.error,
    summary="Requirements file that pip cannot use on a worker",
    rationale=(
        "`pip freeze` in a conda environment writes the paths of the computer where packages were "
        "built, `conda list --export` writes versions that pip cannot parse, and files in an "
        "encoding other than UTF-8, such as CP949, cannot be read. All of that fails on the "
        "worker, after the machines were created. Encodings that the file declares, by a mark or "
        "a comment in its first two lines, are understood. If `job.setup` may create the paths, "
        "it is a risk."
    ),
    bad="""\
# /// script
# dependencies = ["six @ file:///croot/six_1699999999999/work"]
# ///
import six

print(six.__version__)
""",
    good="""\
# /// script
# dependencies = ["six==1.16.0"]
# ///
import six

print(six.__version__)
""",
)
ADDRESS = re.compile(r"(?:^|@|=|\s)\s*(file:/+[^\s;#]*)")
PATH = re.compile(
    r"(?:-e|--editable|-r|--requirement|-c|--constraint)?[\s=]*((?:\.{1,2})?/[^\s;#\[]*)"
)
CONDA = re.compile(r"[A-Za-z0-9][\w.-]*=[^=\s]+(?:=\S+)?\s*")


@once_per_folder
def find(project: Project, target: Target) -> Iterator[Finding]:
    installed = requirements_file(project, target.requirements)
    files = included_files(project.root, target.requirements) if installed is not None else []
    for file in files:
        try:
            text = file.text()
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            message = f"byte {error.object[error.start]:#x} is not valid UTF-8: pip cannot read it"
            hint = f"Save it as UTF-8, for example\n    iconv -f CP949 -t UTF-8 {file.path.name}"
            yield Finding(RULE.code, RULE.severity, file.path, line, 0, message, hint)
            continue
        for number, line_text in enumerate(text.split("\n"), 1):
            problem = _problem(line_text, file.path, project.root)
            if problem is not None:
                message, hint = problem
                severity = Severity.risk if target.installs_more else RULE.severity
                yield Finding(RULE.code, severity, file.path, number, 0, message, hint)

    for path, number, requirement in _listed(project, target):
        problem = _problem(requirement, path, project.root)
        if problem is not None:
            severity = Severity.risk if target.installs_more else RULE.severity
            yield Finding(RULE.code, severity, path, number, 0, *problem)


def _listed(project: Project, target: Target) -> Iterator[tuple[Path, int, str]]:
    """The requirements in the script's metadata and in pyproject.toml, with their places."""
    listed: list[tuple[Path, object]] = []
    file = requirements_file(project, target.requirements)
    metadata = metadata_of(project)
    if metadata is not None and (file is None or form_of(file) is None):
        listed.append((project.script.path, metadata.dependencies))
    if file is not None and file.name == PROJECT:
        with suppress(OSError, ValueError, AttributeError):
            document = parse_toml(file.read_text("utf-8"))
            listed.append((file, document.get("project", {}).get("dependencies", [])))
    for path, requirements in listed:
        lines = path.read_text("utf-8", "replace").split("\n")
        for requirement in requirements if isinstance(requirements, list) else []:
            text = str(requirement)
            yield path, next((n for n, line in enumerate(lines, 1) if text in line), 1), text


def _problem(line: str, file: Path, root: Path) -> tuple[str, str] | None:
    """A message and a hint if pip cannot use a line."""
    line = re.sub(r"(^|\s)#.*", "", line).strip()
    address = ADDRESS.search(line)
    if address is not None and "${" not in line:
        name = line.partition("@")[0].strip() or "the package"
        return (
            f"{address[1]} is a path of the computer where the file was written",
            f"Require {name} by its version. pip writes versions without paths with\n"
            "    pip list --format=freeze > requirements.txt",
        )
    if CONDA.fullmatch(line):
        return (
            f"{line.strip()} is written by conda, and pip cannot parse it",
            "Use two equal signs and no build:\n    pip list --format=freeze > requirements.txt",
        )
    path = PATH.fullmatch(line)
    if path is not None and "${" not in line:
        base = root if re.match(r"(-e|--editable|[./])", line) else file.parent
        if not (base / path[1]).resolve().is_relative_to(root.resolve()):
            return (
                f"{path[1]} is outside the uploaded folder",
                "Copy it into that folder, and use a relative path.",
            )
    return None
