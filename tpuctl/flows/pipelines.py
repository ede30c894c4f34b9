"""Writes a pipeline for GitHub Actions, GitLab CI or Cloud Build, out of the templates.

It says what is typed by hand in the folder where it is written: that folder, the stack file and
the script are named in it as they are here.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import Conflict, TpuctlError, Usage
from tpuctl.flows.git_checkout import Checkout
from tpuctl.flows.pipeline_text import MAX_BUILD_HOURS, Draft, require_plain, text_of, yaml_scalar
from tpuctl.model.stack import Stack, load_stack
from tpuctl.version import __version__

__all__ = ["SYSTEMS", "Pipeline", "PipelineOptions", "System", "output_path", "render", "write"]

SCRIPT_PLACEHOLDER = "SCRIPT.py"  # what stands where no script can be guessed
GUESSES = ("pretrain.py", "train.py", "main.py")
DEFAULT_HOURS = 4.0
ACCOUNT = re.compile(r"[\w.-]+@[\w.-]+")
POOL = r"projects/\w+/locations/global/workloadIdentityPools/[\w-]+"
PROVIDER = re.compile(rf"{POOL}/providers/[\w-]+")


@dataclass(frozen=True)
class System:
    """Where a pipeline of it lies, and under which other name where that is taken."""

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
    """What was asked for; what was not is guessed."""

    run_arguments: tuple[str, ...] = ()  # after `tpuctl run`: a script with --, or -m, or -- alone
    account: str = ""
    provider: str = ""
    push: str = ""  # a branch whose pushes train
    schedule: str = ""  # five fields of cron, in UTC
    hours: float | None = None
    install: str = ""
    hash: str = ""


@dataclass(frozen=True)
class Pipeline:
    """A rendered pipeline, and what its author has to know."""

    system: System
    stack: Stack
    text: str
    account: str
    provider: str
    placeholders: Mapping[str, str]  # what stands in it for something unknown, and what that is
    hours: float


# Where ------------------------------------------------------------------------------------------


def output_path(system: System, checkout: Checkout, output: Path | None) -> Path:
    """The file to write. Raises Conflict where it is there already."""
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
        "Nothing is overwritten",
        f"{_display_path(files[-1])} exists",
        hint="Write it elsewhere, or see what would be written:\n"
        f"    tpuctl ci {system.name} {alternative}\n    tpuctl ci {system.name} --print",
        where="--output" if output is not None else "",
    )


def write(file: Path, text: str) -> None:
    """A new file, with the folders above it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise Conflict(
            "Nothing is overwritten",
            f"{_display_path(file)} exists",
            hint="Move it away first, or write to another place with --output.",
        ) from None
    except OSError as error:
        raise TpuctlError(
            "Cannot write here",
            f"{error.filename or file}: {error.strerror}",
            hint="Choose another place with --output.",
        ) from error


def _display_path(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


# What -------------------------------------------------------------------------------------------


def render(
    system: System,
    stack_file: Path,
    options: PipelineOptions,
    checkout: Checkout,
    *,
    is_included: bool,
) -> Pipeline:
    """The pipeline's text. `is_apart` says that another file includes it. Raises Usage."""
    stack = load_stack(stack_file)
    _require_name(stack, stack_file)
    hours = _hours(options, stack, system)
    account, provider = _account(options, stack), _provider(options, stack, system)
    words, is_known = (options.run_arguments, True) if options.run_arguments else _guess_script()
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
    if not is_known:
        placeholders[SCRIPT_PLACEHOLDER] = "the script to run; tpuctl ci takes it as an argument"
    return Pipeline(system, stack, text, account, provider, placeholders, hours)


def _require_name(stack: Stack, file: Path) -> None:
    if stack.file.stack is None:
        raise Usage(
            "Stack without a name",
            f"{file} leaves it to the folder's name, which is another one on a build machine",
            hint=f"Write it down, at the top of {file}:\n    stack: {stack.name}",
            where=str(file),
        )


def _relative(stack_file: Path, checkout: Checkout) -> str:
    """The stack file's place seen from here, as it is in any checkout."""
    absolute = stack_file.resolve()
    if not absolute.is_relative_to(checkout.root):
        raise Usage(
            "Not in the repository",
            f"{stack_file} is not below {checkout.root}",
            hint="Pipelines see what is committed: put it there.",
            where="--stack-file",
        )
    relative = Path(os.path.relpath(absolute, Path.cwd())).as_posix()
    return require_plain(relative, "--stack-file")


def _hours(options: PipelineOptions, stack: Stack, system: System) -> float:
    max_hours = 22.0 if system.name == "cloudbuild" else 24.0 * 14
    hours = options.hours or min(stack.file.limits.max_hours or DEFAULT_HOURS, max_hours)
    if not 0 < hours <= max_hours:
        because = (
            f"a build ends after {MAX_BUILD_HOURS:g}"
            if max_hours < MAX_BUILD_HOURS
            else "that is long"
        )
        raise Usage(
            "Invalid value",
            f"--hours cannot be {hours:g}: {because}",
            hint=f"At most {max_hours:g}. For longer, start the job by hand with\n"
            "    tpuctl run --detach",
            where="--hours",
        )
    return hours


def _account(options: PipelineOptions, stack: Stack) -> str:
    account = options.account or f"tpuctl-ci@{stack.project}.iam.gserviceaccount.com"
    if not ACCOUNT.fullmatch(account):
        raise Usage(
            "Invalid value",
            f"--service-account cannot be {account}",
            hint=f"It is an e-mail, such as\n    tpuctl-ci@{stack.project}.iam.gserviceaccount.com",
            where="--service-account",
        )
    return account


def _provider(options: PipelineOptions, stack: Stack, system: System) -> str:
    usual = f"projects/PROJECT_NUMBER/locations/global/workloadIdentityPools/{system.name}"
    provider = options.provider or f"{usual}/providers/{stack.name[:32].rstrip('-')}"
    if not PROVIDER.fullmatch(provider):
        raise Usage(
            "Invalid value",
            f"--provider cannot be {provider}",
            hint="Its whole name is told by\n    gcloud iam workload-identity-pools providers "
            "list \\\n      --location global --workload-identity-pool POOL --format 'value(name)'",
            where="--provider",
        )
    return provider


def _guess_script() -> tuple[tuple[str, ...], bool]:
    """The one script in this folder, or in one right below, that looks like a training."""
    for name in GUESSES:
        scripts = sorted(path for path in (*Path().glob(name), *Path().glob(f"*/{name}")))
        if len(scripts) == 1:
            return (str(scripts[0]),), True
    return (SCRIPT_PLACEHOLDER,), False


def _check_arguments(words: Sequence[str]) -> str:
    """The arguments of `check` for what is run; empty where only the stack file can be checked."""
    program_words = words[: words.index("--")] if "--" in words else words
    return shlex.join(program_words)


def _limit(hours: float) -> str:
    return f"{hours:g}h" if hours == int(hours) else f"{max(1, round(hours * 60))}m"


def _pip(options: PipelineOptions) -> str:
    """Its own dependencies have their hashes in it; its own can only come from outside."""
    requirement = require_plain(options.install or f"tpuctl=={__version__}", "--install")
    lock = "from tpuctl import assets; print(assets.runtime_lock())"
    lines = []
    if options.hash:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", options.hash):
            raise Usage(
                "Invalid value",
                f"--hash cannot be {options.hash}",
                hint="It is that of the wheel, as sha256: and 64 digits. See it with\n"
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
