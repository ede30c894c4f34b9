"""`init`: create a stack file and a sample job from a template, or add a job to a stack."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from tpuctl import assets
from tpuctl.errors import Conflict, TpuctlError, Usage
from tpuctl.model.stack import minimal_stack, slug
from tpuctl.spelling import nearest

__all__ = [
    "LOCAL_PROJECT",
    "CreatedFiles",
    "describe_templates",
    "guess_script",
    "job_command",
    "write",
]

SCRIPTS = ("pretrain.py", "train.py")  # the script to run in a template's job
LOCAL_PROJECT = "local-project"  # exists in a new local cloud


@dataclass(frozen=True)
class CreatedFiles:
    """The created files, the folder of the job, and the script to run.

    A job without a stack file has instead the command to start it with on this computer.
    """

    files: tuple[Path, ...]
    stack_file: Path | None
    folder: Path | None
    script: str
    command: str = ""


def describe_templates() -> dict[str, str]:
    """A sentence about each template: for whom it is."""
    return {name: _description(name) for name in assets.template_names()}


def _description(template: str) -> str:
    """The first line of a stack file; of a job alone, the first sentence of its documentation."""
    stack_file = _stack_template(template)
    if stack_file.is_file():
        return stack_file.read_text("utf-8").partition("\n")[0].lstrip("# ")
    text = re.sub(r"\A# .*\n", "", _documentation(_job_template(template))).strip()
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def _documentation(folder: Path) -> str:
    """The README of a job's folder, or the docstring of its only script."""
    readme = folder / "README.md"
    if readme.is_file():
        return readme.read_text("utf-8")
    script, *others = folder.glob("*.py")
    return "" if others else ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""


def job_command(folder: Path) -> str:
    """The first `python SCRIPT …` in the documentation of a job's folder, as typed outside it."""
    command = re.search(r"^\s*python (\S+\.py)(.*?)(?: +#.*)?$", _documentation(folder), re.M)
    if command is None:
        return ""
    script = shlex.quote(str(folder / Path(command[1]).name))
    return f"python {script}{command[2]}"


def guess_script(stack_file: Path) -> str:
    """The script next to a stack file, quoted for a shell; `SCRIPT` if there is not exactly one."""
    folder = stack_file.parent
    scripts = [folder / name for name in SCRIPTS if (folder / name).is_file()]
    scripts = scripts or [path for name in SCRIPTS for path in sorted(folder.glob(f"*/{name}"))]
    scripts = scripts or sorted(folder.glob("*.py"))
    return shlex.quote(str(scripts[0])) if len(scripts) == 1 else "SCRIPT"


def write(template: str, folder: Path, *, name: str, project: str, local: bool) -> CreatedFiles:
    """Copy a template. Raises Conflict rather than overwrite a file."""
    templates = assets.template_names()
    if template not in templates:
        like = nearest(template, templates) or templates
        raise Usage(
            "Unknown template",
            f"template {template} not found",
            hint=f"Did you mean {', '.join(like)}? List all templates:\n    tpuctl init --list",
        )
    stack_text = ""
    if _stack_template(template).is_file():
        stack_text = _stack_text(template, folder, name, project, local)
    stack_file = folder / "tpuctl.yaml"
    target = folder / template
    for path in (stack_file, target) if stack_text else (target,):
        if path.exists():
            use = (
                "Use the existing stack file:\n    tpuctl up\nor choose" if stack_text else "Choose"
            )
            raise Conflict(
                "File already exists",
                f"{path} exists and is not overwritten",
                hint=f"{use} another folder:\n    tpuctl init {template} --folder {template}-2",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(template, stack_text, stack_file, target)
    except OSError as error:
        raise TpuctlError(
            "Cannot write files",
            f"{error.filename or folder}: {error.strerror}",
            hint="Choose another folder with --folder.",
        ) from error


def _stack_text(template: str, folder: Path, name: str, project: str, local: bool) -> str:
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT", "")
    if local:
        project = project or LOCAL_PROJECT
    if not project:
        raise Usage(
            "No project specified",
            "the stack file needs a Google Cloud project id",
            hint="Specify it:\n    tpuctl init --project my-project\n"
            "or try tpuctl without an account:\n    tpuctl --cloud local init",
            where="--project",
        )
    name = name or slug(folder.resolve().name)
    minimal_stack(name, project, option="--name")  # rejects invalid names
    text = _stack_template(template).read_text("utf-8")
    return text.replace("{stack}", name).replace("{project}", project)


def _write(template: str, stack_text: str, stack_file: Path, target: Path) -> CreatedFiles:
    files: list[Path] = []
    if stack_text:
        stack_file.write_text(stack_text, "utf-8")
        files.append(stack_file)
    source = _job_template(template)
    has_job = source.is_dir()
    if has_job:  # links between templates become files
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        files += sorted(path for path in target.rglob("*") if path.is_file())
    scripts = [path for path in files if path.name in SCRIPTS and path.parent == target]
    return CreatedFiles(
        tuple(files),
        stack_file if stack_text else None,
        target if has_job else None,
        shlex.quote(str(scripts[0])) if scripts else "SCRIPT",
        "" if stack_text else job_command(target),
    )


def _stack_template(template: str) -> Path:
    return assets.templates() / "stacks" / f"{template}.yaml"


def _job_template(template: str) -> Path:
    return assets.templates() / "jobs" / template
