"""Writes a stack file and a job to start from, out of the templates."""

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

SCRIPTS = ("pretrain.py", "train.py")  # what is to be run first, of a template's job
LOCAL_PROJECT = "local-project"  # a fresh local cloud has it


@dataclass(frozen=True)
class CreatedFiles:
    """The files made, the job's folder among them, and the script to run."""

    files: tuple[Path, ...]
    stack_file: Path
    folder: Path | None
    script: str


def list_templates() -> list[str]:
    return sorted(path.stem for path in (assets.templates() / "stacks").glob("*.yaml"))


def describe_templates() -> dict[str, str]:
    """What each template is for, in a sentence: the first of its stack file."""
    folder = assets.templates() / "stacks"
    texts = {name: (folder / f"{name}.yaml").read_text("utf-8") for name in list_templates()}
    return {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}


def guess_script(stack_file: Path) -> str:
    """The script that stands beside a stack file, as a shell wants it; `SCRIPT` where none does,
    or several do."""
    folder = stack_file.parent
    scripts = [folder / name for name in SCRIPTS if (folder / name).is_file()]
    scripts = scripts or [path for name in SCRIPTS for path in sorted(folder.glob(f"*/{name}"))]
    return shlex.quote(str(scripts[0])) if len(scripts) == 1 else "SCRIPT"


def write(template: str, folder: Path, *, name: str, project: str, local: bool) -> CreatedFiles:
    """Copy a template. Nothing is overwritten: what is in the way is named first."""
    templates = list_templates()
    if template not in templates:
        like = nearest(template, templates) or templates
        raise Usage(
            "Unknown template",
            f"there is no template {template}",
            hint=f"Did you mean {', '.join(like)}? See what each is for with\n"
            "    tpuctl init --list",
        )
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT", "")
    if local:
        project = project or LOCAL_PROJECT
    if not project:
        raise Usage(
            "No project",
            "the stack file needs the id of a Google Cloud project",
            hint="Name it with\n    tpuctl init --project my-project\n"
            "or rehearse without an account:\n    tpuctl --cloud local init",
            where="--project",
        )
    name = name or slug(folder.resolve().name)
    minimal_stack(name, project, option="--name")  # which refuses what neither can be called
    stack_file = folder / "tpuctl.yaml"
    source = assets.templates() / "jobs" / template
    target = folder / template
    for path in (stack_file, target):
        if path.exists():
            raise Conflict(
                "Nothing is overwritten",
                f"{path} exists",
                hint="Bring up what is there already:\n    tpuctl up\n"
                f"or write to another place:\n    tpuctl init {template} --folder {template}-2",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(template, stack_file, source, target, name, project)
    except OSError as error:
        raise TpuctlError(
            "Cannot write here",
            f"{error.filename or folder}: {error.strerror}",
            hint="Choose another place with --folder.",
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
