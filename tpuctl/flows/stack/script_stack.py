"""The stack of a script that has no stack file: in memory, under a name that the script decides."""

from __future__ import annotations

import configparser
import getpass
import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuctl.catalog import AcceleratorType
from tpuctl.errors import Usage
from tpuctl.files import read_file
from tpuctl.flows.stack.init import LOCAL_PROJECT, DetectedJob, TpuOptions, prepare
from tpuctl.model.scripts.entry_script import has_scripts
from tpuctl.model.stack.stack import HASH_LENGTH, MAX_NAME_LENGTH, Stack, stack_of_text
from tpuctl.model.stack.stack_search import STACK_FILE
from tpuctl.model.stack.stack_text import parse_stack_text
from tpuctl.model.text.names import Names, bucket_name_problem
from tpuctl.preflight.submit_gate import Runnable

TEMPLATE = "empty"
MAX_BYTES = 1 << 20  # of gcloud's configuration
GCLOUD = "gcloud's configuration"


@dataclass(frozen=True)
class Project:
    """A project, and what names it: empty for an option, and for the local cloud's."""

    id: str
    source: str = ""
    is_typed: bool = False


@dataclass(frozen=True)
class ScriptStack:
    """The stack of one script, and what writes a stack file for it."""

    stack: Stack
    project: Project
    run_options: str  # what names this TPU again, as options of `run`
    init_command: str  # without `tpuctl`


def script_stack(
    program: Runnable, accelerator: AcceleratorType, tpu: TpuOptions, project: Project
) -> ScriptStack:
    """The stack that `init` would write for these options. Raises Usage, InvalidStack.

    Its name is the same for each run of the script by this user, so that a run finds what an
    interrupted one has left.
    """
    name = stack_name(program, project.id)
    no_job = DetectedJob(None, None, "", ())
    draft = prepare(TEMPLATE, program.folder, name=name, project=project.id, tpu=tpu, job=no_job)
    path = program.folder / STACK_FILE
    stack = stack_of_text(parse_stack_text(draft.stack_text, STACK_FILE, program.folder), path)
    stack.require_valid()
    words = ["--tpu", accelerator.name]
    words += ["--zone", ",".join(tpu.zones)] if tpu.zones else []
    words += ["--spot"] if tpu.is_spot else []
    words += ["--project", project.id] if project.is_typed else []
    return ScriptStack(stack, project, shlex.join(words), _init_command(stack, program.folder))


def _init_command(stack: Stack, folder: Path) -> str:
    """The command that writes a stack file for the same stack."""
    words = ["init"] if has_scripts(folder) else ["init", TEMPLATE]
    words += ["--name", stack.name, "--project", stack.project]
    words += ["--type", stack.accelerator.name, "--zone", ",".join(stack.file.tpu.zones)]
    words += ["--spot"] if stack.is_spot else []
    words += [] if folder == Path() else ["--folder", str(folder)]
    return shlex.join(words)


def stack_name(program: Runnable, project: str) -> str:
    """A name for people, with a short hash of whose script it is and where.

    In a project that several people use, `train.py` of one is not that of another.
    """
    folder = program.folder.resolve()
    file = program.program or (program.file.name if program.file is not None else "")
    identity = "\0".join((getpass.getuser(), str(folder), program.form, file))
    mark = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:HASH_LENGTH]
    script = file.rpartition(".")[2] if program.form == "module" else Path(file).stem
    longest = MAX_NAME_LENGTH - HASH_LENGTH - 1
    words = _plain(f"{folder.name}-{script}")
    if len(words) > longest or not words[:1].isalpha():
        words = _plain(script)[:longest].rstrip("-")
    for title in (words, "script"):
        name = f"{title}-{mark}"
        if title[:1].isalpha() and not bucket_name_problem(Names(name, project).bucket):
            break
    return name


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def find_project(
    option: str,
    *,
    local: bool,
    accelerator: str,
    environment: Mapping[str, str] = os.environ,
) -> Project:
    """The project that the option names, or else what is configured on this computer.

    Raises Usage if none is.
    """
    if option:
        return Project(option, is_typed=True)
    variables = (
        ("GOOGLE_CLOUD_PROJECT",) if local else ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
    )
    for variable in variables:
        if environment.get(variable):
            return Project(environment[variable], variable)
    if local:
        return Project(LOCAL_PROJECT)
    if project := _project_of_gcloud(environment):
        return Project(project, GCLOUD)
    raise Usage(
        "No project specified",
        "without a stack file, the TPU needs a Google Cloud project",
        hint=f"Pass it:\n    tpuctl run --tpu {accelerator} --project my-project SCRIPT\n"
        "Or set it once, for gcloud and for this:\n    gcloud config set project my-project\n"
        f"Or try it without an account:\n    tpuctl --cloud local run --tpu {accelerator} SCRIPT",
        where="--project",
    )


def _project_of_gcloud(environment: Mapping[str, str]) -> str:
    """The project of gcloud's active configuration; empty if there is none."""
    default = os.path.expanduser("~/.config/gcloud")  # noqa: PTH111 - users without a home
    folder = Path(environment.get("CLOUDSDK_CONFIG") or default)
    try:
        name = environment.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _read(folder / "active_config")
    except (OSError, ValueError):
        name = "default"
    if not re.fullmatch(r"[a-z][-a-z0-9]*", name.strip()):
        return ""
    configuration = configparser.ConfigParser(interpolation=None)
    try:
        file = folder / "configurations" / f"config_{name.strip()}"
        configuration.read_string(_read(file))
    except (OSError, ValueError, configparser.Error):
        return ""
    return configuration.get("core", "project", fallback="").strip()


def _read(path: Path) -> str:
    return read_file(path, MAX_BYTES).decode("utf-8")
