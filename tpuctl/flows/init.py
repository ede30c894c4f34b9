"""`init`: create a stack file and a sample job from a template."""

from __future__ import annotations

import os
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
    "list_templates",
    "write",
]

SCRIPTS = ("pretrain.py", "train.py")  # the script to run in a template's job
LOCAL_PROJECT = "local-project"  # exists in a new local cloud


@dataclass(frozen=True)
class CreatedFiles:
    """The created files, the folder of the job, and the script to run."""

    files: tuple[Path, ...]
    stack_file: Path
    folder: Path | None
    script: str


def list_templates() -> list[str]:
    return sorted(path.stem for path in (assets.templates() / "stacks").glob("*.yaml"))


def describe_templates() -> dict[str, str]:
    """A sentence about each template: the first line of its stack file."""
    folder = assets.templates() / "stacks"
    texts = {name: (folder / f"{name}.yaml").read_text("utf-8") for name in list_templates()}
    return {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}


def guess_script(stack_file: Path) -> str:
    """The script next to a stack file, quoted for a shell; `SCRIPT` if there is not exactly one."""
    folder = stack_file.parent
    scripts = [folder / name for name in SCRIPTS if (folder / name).is_file()]
    scripts = scripts or [path for name in SCRIPTS for path in sorted(folder.glob(f"*/{name}"))]
    return shlex.quote(str(scripts[0])) if len(scripts) == 1 else "SCRIPT"


def write(template: str, folder: Path, *, name: str, project: str, local: bool) -> CreatedFiles:
    """Copy a template. Raises Conflict rather than overwrite a file."""
    templates = list_templates()
    if template not in templates:
        like = nearest(template, templates) or templates
        raise Usage(
            "Unknown template",
            f"template {template} not found",
            hint=f"Did you mean {', '.join(like)}? List all templates:\n    tpuctl init --list",
        )
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
    stack_file = folder / "tpuctl.yaml"
    source = assets.templates() / "jobs" / template
    target = folder / template
    for path in (stack_file, target):
        if path.exists():
            raise Conflict(
                "File already exists",
                f"{path} exists and is not overwritten",
                hint="Use the existing stack file:\n    tpuctl up\n"
                f"or choose another folder:\n    tpuctl init {template} --folder {template}-2",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(template, stack_file, source, target, name, project)
    except OSError as error:
        raise TpuctlError(
            "Cannot write files",
            f"{error.filename or folder}: {error.strerror}",
            hint="Choose another folder with --folder.",
        ) from error


def _write(
    template: str, stack_file: Path, source: Path, target: Path, name: str, project: str
) -> CreatedFiles:
    text = (assets.templates() / "stacks" / f"{template}.yaml").read_text("utf-8")
    stack_file.write_text(text.replace("{stack}", name).replace("{project}", project), "utf-8")
    files = [stack_file]
    has_job = source.is_dir()
    if has_job:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        files += sorted(path for path in target.rglob("*") if path.is_file())
    scripts = [path for path in files if path.name in SCRIPTS and path.parent == target]
    return CreatedFiles(
        tuple(files),
        stack_file,
        target if has_job else None,
        shlex.quote(str(scripts[0])) if scripts else "SCRIPT",
    )
