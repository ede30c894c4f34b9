"""`ci`: generate a pipeline for GitHub Actions, GitLab CI or Cloud Build from templates.

The pipeline runs the same commands as a user in the current folder, with the same paths.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import Conflict, TpuctlError, Usage
from tpuctl.flows.ci.git_checkout import Checkout
from tpuctl.flows.ci.pipeline_text import (
    MAX_BUILD_HOURS,
    Draft,
    require_plain,
    text_of,
    yaml_scalar,
)
from tpuctl.model.scripts.entry_script import find_script
from tpuctl.model.stack.stack import Stack, load_stack
from tpuctl.model.text.names import account_email
from tpuctl.version import __version__

SCRIPT_PLACEHOLDER = "SCRIPT.py"  # used if no script is found
DEFAULT_HOURS = 4.0
ACCOUNT = re.compile(r"[\w.-]+@[\w.-]+")
POOL = r"projects/\w+/locations/global/workloadIdentityPools/[\w-]+"
PROVIDER = re.compile(rf"{POOL}/providers/[\w-]+")


@dataclass(frozen=True)
class System:
    """A CI system, with the path of its pipeline and another path if that exists."""

    name: str
    title: str
    file: str
    fallback_file: str = ""


SYSTEMS = {
    system.name: system
    for system in (
        System("github", "GitHub Actions", ".github/workflows/tpu.yml"),
        System("gitlab", "GitLab CI", ".gitlab-ci.yml", ".gitlab/tpu.yml"),
        System("cloudbuild", "Cloud Build", "cloudbuild.yaml"),
    )
}


@dataclass(frozen=True)
class PipelineOptions:
    """Options of `ci`; unset ones get defaults."""

    run_arguments: tuple[str, ...] = ()  # of `tpuctl run`
    account: str = ""
    provider: str = ""
    push: str = ""  # branch that triggers training
    schedule: str = ""  # cron expression, in UTC
    hours: float | None = None
    install: str = ""
    hash: str = ""


@dataclass(frozen=True)
class Pipeline:
    """A rendered pipeline, and what the user must know about it."""

    system: System
    stack: Stack
    text: str
    account: str
    provider: str
    placeholders: Mapping[str, str]  # left to the user to fill in, with a description each
    hours: float


# Where ------------------------------------------------------------------------------------------


def output_path(system: System, checkout: Checkout, output: Path | None) -> Path:
    """The file to write. Raises Conflict if it exists."""
    names = [system.file, *filter(None, [system.fallback_file])]
    files = [output] if output is not None else [checkout.root / name for name in names]
    free = [file for file in files if not (file.exists() or file.is_symlink())]
    if free:
        return free[0]
    alternative = {
        "github": "--output .github/workflows/train.yml",
        "gitlab": "--output .gitlab/train.yml",
        "cloudbuild": "--output cloudbuild-tpu.yaml",
    }[system.name]
    raise Conflict(
        "File already exists",
        f"{_display_path(files[-1])} exists and is not overwritten",
        hint="Write to another file, or print the pipeline:\n"
        f"    tpuctl ci {system.name} {alternative}\n    tpuctl ci {system.name} --print",
        where="--output" if output is not None else "",
    )


def require_new(file: Path) -> None:
    """Raise Conflict if the file exists."""
    if file.exists() or file.is_symlink():
        raise Conflict(
            "File already exists",
            f"{_display_path(file)} exists and is not overwritten",
            hint="Move it first, or write to another file with --output.",
        )


def write(file: Path, text: str) -> None:
    """Write a new file, creating its parent folders."""
    require_new(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise TpuctlError(
            "Cannot write the file",
            f"{error.filename or file}: {error.strerror}",
            hint="Write to another file with --output.",
        ) from error


def _display_path(file: Path) -> str:
    current = Path.cwd()
    return str(file.relative_to(current) if file.is_relative_to(current) else file)


# What -------------------------------------------------------------------------------------------


def render(
    system: System,
    stack_file: Path,
    options: PipelineOptions,
    checkout: Checkout,
    *,
    is_included: bool,
) -> Pipeline:
    """Render the pipeline. `is_included`: another file includes it. Raises Usage."""
    stack = load_stack(stack_file)
    _require_name(stack, stack_file)
    hours = _hours(options, stack, system)
    account, provider = _account(options, stack), _provider(options, stack, system)
    script = find_script(Path())
    words = options.run_arguments or (str(script) if script else SCRIPT_PLACEHOLDER,)
    command = shlex.join(require_plain(word, "after --") for word in words)
    typed = _relative(stack_file, checkout)
    folder = require_plain(checkout.inside or ".", "the folder's name")
    values = {
        "stack": stack.name,
        "project": stack.project,
        "account": account,
        "provider": provider,
        "command": command,
        "limit": _limit(hours),
        "pip": _pip(options),
        "folder": yaml_scalar(folder),
        "folder_shell": shlex.quote(folder),
        "variables": f"TPUCTL_STACK_FILE: {yaml_scalar(typed)}",
    }
    draft = Draft(
        stack,
        typed,
        values,
        _check_arguments(words),
        hours,
        options.push,
        options.schedule,
        is_included,
    )
    text = text_of(system.name, draft)
    placeholders = {}
    if "PROJECT_NUMBER" in provider and system.name != "cloudbuild":
        placeholders["PROJECT_NUMBER"] = f"the number of project {stack.project}"
    if words == (SCRIPT_PLACEHOLDER,):
        placeholders[SCRIPT_PLACEHOLDER] = "the script to run (pass it to tpuctl ci to set it)"
    return Pipeline(system, stack, text, account, provider, placeholders, hours)


def _require_name(stack: Stack, file: Path) -> None:
    if stack.file.stack is None:
        raise Usage(
            "Stack has no name",
            f"{file} sets no name, and the default, the folder's name, differs on a build machine",
            hint=f"Set the name at the top of {file}:\n    stack: {stack.name}",
            where=str(file),
        )


def _relative(stack_file: Path, checkout: Checkout) -> str:
    """The stack file's path relative to the current folder, the same in every checkout."""
    absolute = stack_file.resolve()
    if not absolute.is_relative_to(checkout.root):
        raise Usage(
            "Stack file not in the repository",
            f"{stack_file} is not in {checkout.root}",
            hint="Move it into the repository and commit it, so that the pipeline has it.",
            where="--stack-file",
        )
    relative = Path(os.path.relpath(absolute, Path.cwd())).as_posix()
    return require_plain(relative, "--stack-file")


def _hours(options: PipelineOptions, stack: Stack, system: System) -> float:
    max_hours = 22.0 if system.name == "cloudbuild" else 24.0 * 14
    hours = options.hours or min(stack.file.limits.max_hours or DEFAULT_HOURS, max_hours)
    if not 0 < hours <= max_hours:
        because = (
            f"builds end after {MAX_BUILD_HOURS:g} hours"
            if max_hours < MAX_BUILD_HOURS
            else "too long"
        )
        raise Usage(
            "Invalid value",
            f"--hours {hours:g}: {because}",
            hint=f"Use up to {max_hours:g}. For longer jobs, start the job yourself:\n"
            "    tpuctl run --detach SCRIPT",
            where="--hours",
        )
    return hours


def _account(options: PipelineOptions, stack: Stack) -> str:
    account = options.account or account_email("tpuctl-ci", stack.project)
    if not ACCOUNT.fullmatch(account):
        raise Usage(
            "Invalid value",
            f"--service-account: {account} is not an email address",
            hint=f"For example:\n    {account_email('tpuctl-ci', stack.project)}",
            where="--service-account",
        )
    return account


def _provider(options: PipelineOptions, stack: Stack, system: System) -> str:
    usual = f"projects/PROJECT_NUMBER/locations/global/workloadIdentityPools/{system.name}"
    provider = options.provider or f"{usual}/providers/{stack.name[:32].rstrip('-')}"
    if not PROVIDER.fullmatch(provider):
        raise Usage(
            "Invalid value",
            f"--provider: {provider} is not the full name of a provider",
            hint="List the full names:\n    gcloud iam workload-identity-pools providers "
            "list \\\n      --location global --workload-identity-pool POOL --format 'value(name)'",
            where="--provider",
        )
    return provider


def _check_arguments(words: Sequence[str]) -> str:
    """The arguments of `tpuctl check` for this run; empty if only the stack file can be checked."""
    program_words = words[: words.index("--")] if "--" in words else words
    return shlex.join(program_words)


def _limit(hours: float) -> str:
    return f"{hours:g}h" if hours == int(hours) else f"{max(1, round(hours * 60))}m"


def _pip(options: PipelineOptions) -> str:
    """The commands that install tpuctl. Its package contains the hashes of its dependencies; its
    own hash must come from the user."""
    requirement = require_plain(options.install or f"tpuctl=={__version__}", "--install")
    lock = "from tpuctl import assets; print(assets.runtime_lock())"
    lines = []
    if options.hash:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", options.hash):
            raise Usage(
                "Invalid value",
                f"--hash: {options.hash} is not a SHA-256 hash",
                hint="Use the wheel's hash, sha256: and 64 hexadecimal digits:\n"
                "    pip hash tpuctl-*.whl",
                where="--hash",
            )
        lines.append(
            f"echo {shlex.quote(f'{requirement} --hash={options.hash}')} > /tmp/tpuctl.txt"
        )
        lines.append("python -m pip install --no-deps --require-hashes -r /tmp/tpuctl.txt")
    else:
        lines.append(f"python -m pip install --no-deps {shlex.quote(requirement)}")
    lines.append(f"lock=$(python -c '{lock}')")
    lines.append('python -m pip install --require-hashes -r "$lock"')
    return "\n".join(lines)
