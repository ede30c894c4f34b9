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
from tpuctl.flows.pipeline_text import BUILD_HOURS, Draft, plain, text_of, yaml_scalar
from tpuctl.model.stack import Stack, load_stack
from tpuctl.version import __version__

__all__ = ["SYSTEMS", "Pipeline", "System", "Wishes", "place", "render", "write"]

SCRIPT = "SCRIPT.py"  # what stands where no script can be guessed
GUESSES = ("pretrain.py", "train.py", "main.py")
USUAL_HOURS = 4.0
ACCOUNT = re.compile(r"[\w.-]+@[\w.-]+")
POOL = r"projects/\w+/locations/global/workloadIdentityPools/[\w-]+"
PROVIDER = re.compile(rf"{POOL}/providers/[\w-]+")


@dataclass(frozen=True)
class System:
    """Where a pipeline of it lies, and under which other name where that is taken."""

    name: str
    title: str
    file: str
    elsewhere: str = ""


SYSTEMS = {
    one.name: one
    for one in (
        System("github", "GitHub Actions", ".github/workflows/tpu.yml"),
        System("gitlab", "GitLab CI", ".gitlab-ci.yml", ".gitlab/tpu.yml"),
        System("cloudbuild", "Cloud Build", "cloudbuild.yaml"),
    )
}


@dataclass(frozen=True)
class Wishes:
    """What was asked for; what was not is guessed."""

    words: tuple[str, ...] = ()  # after `tpuctl run`: a script with --, or -m, or -- alone
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
    fill_in: Mapping[str, str]  # what stands in it for something unknown, and what that is
    hours: float


# Where ------------------------------------------------------------------------------------------


def place(system: System, checkout: Checkout, output: Path | None) -> Path:
    """The file to write. Raises Conflict where it is there already."""
    names = [system.file, *filter(None, [system.elsewhere])]
    files = [output] if output is not None else [checkout.root / name for name in names]
    free = [file for file in files if not (file.exists() or file.is_symlink())]
    if free:
        return free[0]
    other = {
        "github": "--output .github/workflows/train.yml",
        "gitlab": "--output .gitlab/train.yml",
        "cloudbuild": "--output cloudbuild-tpu.yaml",
    }[system.name]
    raise Conflict(
        "Nothing is overwritten",
        f"{_shown(files[-1])} exists",
        hint="Write it elsewhere, or see what would be written:\n"
        f"    tpuctl ci {system.name} {other}\n    tpuctl ci {system.name} --print",
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
            f"{_shown(file)} exists",
            hint="Move it away first, or write to another place with --output.",
        ) from None
    except OSError as error:
        raise TpuctlError(
            "Cannot write here",
            f"{error.filename or file}: {error.strerror}",
            hint="Choose another place with --output.",
        ) from error


def _shown(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


# What -------------------------------------------------------------------------------------------


def render(
    system: System, stack_file: Path, wishes: Wishes, checkout: Checkout, *, is_apart: bool
) -> Pipeline:
    """The pipeline's text. `is_apart` says that another file includes it. Raises Usage."""
    stack = load_stack(stack_file)
    _require_name(stack, stack_file)
    hours = _hours(wishes, stack, system)
    account, provider = _account(wishes, stack), _provider(wishes, stack, system)
    words, is_known = (wishes.words, True) if wishes.words else _guess()
    command = shlex.join(plain(word, "after --") for word in words)
    typed = _relative(stack_file, checkout)
    folder = plain(checkout.inside or ".", "the folder's name")
    values = {
        "stack": stack.name,
        "project": stack.project,
        "account": account,
        "provider": provider,
        "command": command,
        "limit": _limit(hours),
        "pip": _pip(wishes),
        "folder": yaml_scalar(folder),
        "folder_shell": shlex.quote(folder),
        "variables": f"TPUCTL_STACK_FILE: {yaml_scalar(typed)}",
    }
    draft = Draft(
        stack,
        typed,
        values,
        _checked(words),
        hours,
        wishes.push,
        wishes.schedule,
        is_apart,
    )
    text = text_of(system.name, draft)
    fill_in = {}
    if "PROJECT_NUMBER" in provider and system.name != "cloudbuild":
        fill_in["PROJECT_NUMBER"] = f"the number of project {stack.project}"
    if not is_known:
        fill_in[SCRIPT] = "the script to run; tpuctl ci takes it as an argument"
    return Pipeline(system, stack, text, account, provider, fill_in, hours)


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
    whole = stack_file.resolve()
    if not whole.is_relative_to(checkout.root):
        raise Usage(
            "Not in the repository",
            f"{stack_file} is not below {checkout.root}",
            hint="Pipelines see what is committed: put it there.",
            where="--stack-file",
        )
    found = Path(os.path.relpath(whole, Path.cwd())).as_posix()
    return plain(found, "--stack-file")


def _hours(wishes: Wishes, stack: Stack, system: System) -> float:
    most = 22.0 if system.name == "cloudbuild" else 24.0 * 14
    hours = wishes.hours or min(stack.file.limits.max_hours or USUAL_HOURS, most)
    if not 0 < hours <= most:
        because = f"a build ends after {BUILD_HOURS:g}" if most < BUILD_HOURS else "that is long"
        raise Usage(
            "Invalid value",
            f"--hours cannot be {hours:g}: {because}",
            hint=f"At most {most:g}. For longer, start the job by hand with\n"
            "    tpuctl run --detach",
            where="--hours",
        )
    return hours


def _account(wishes: Wishes, stack: Stack) -> str:
    account = wishes.account or f"tpuctl-ci@{stack.project}.iam.gserviceaccount.com"
    if not ACCOUNT.fullmatch(account):
        raise Usage(
            "Invalid value",
            f"--service-account cannot be {account}",
            hint=f"It is an e-mail, such as\n    tpuctl-ci@{stack.project}.iam.gserviceaccount.com",
            where="--service-account",
        )
    return account


def _provider(wishes: Wishes, stack: Stack, system: System) -> str:
    usual = f"projects/PROJECT_NUMBER/locations/global/workloadIdentityPools/{system.name}"
    provider = wishes.provider or f"{usual}/providers/{stack.name[:32].rstrip('-')}"
    if not PROVIDER.fullmatch(provider):
        raise Usage(
            "Invalid value",
            f"--provider cannot be {provider}",
            hint="Its whole name is told by\n    gcloud iam workload-identity-pools providers "
            "list \\\n      --location global --workload-identity-pool POOL --format 'value(name)'",
            where="--provider",
        )
    return provider


def _guess() -> tuple[tuple[str, ...], bool]:
    """The one script in this folder, or in one right below, that looks like a training."""
    for name in GUESSES:
        found = sorted(path for path in (*Path().glob(name), *Path().glob(f"*/{name}")))
        if len(found) == 1:
            return (str(found[0]),), True
    return (SCRIPT,), False


def _checked(words: Sequence[str]) -> str:
    """The arguments of `check` for what is run; empty where only the stack file can be checked."""
    own = words[: words.index("--")] if "--" in words else words
    return shlex.join(own)


def _limit(hours: float) -> str:
    return f"{hours:g}h" if hours == int(hours) else f"{max(1, round(hours * 60))}m"


def _pip(wishes: Wishes) -> str:
    """Its own dependencies have their hashes in it; its own can only come from outside."""
    wanted = plain(wishes.install or f"tpuctl=={__version__}", "--install")
    lock = "from tpuctl import assets; print(assets.runtime_lock())"
    lines = []
    if wishes.hash:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", wishes.hash):
            raise Usage(
                "Invalid value",
                f"--hash cannot be {wishes.hash}",
                hint="It is that of the wheel, as sha256: and 64 digits. See it with\n"
                "    pip hash tpuctl-*.whl",
                where="--hash",
            )
        lines.append(f"echo {shlex.quote(f'{wanted} --hash={wishes.hash}')} > /tmp/tpuctl.txt")
        lines.append("python -m pip install --no-deps --require-hashes -r /tmp/tpuctl.txt")
    else:
        lines.append(f"python -m pip install --no-deps {shlex.quote(wanted)}")
    lines.append(f"lock=$(python -c '{lock}')")
    lines.append('python -m pip install --require-hashes -r "$lock"')
    return "\n".join(lines)
