"""The text of a pipeline, out of its templates: `templates/ci`.

A placeholder is a word between two @; one alone on its line may become several lines, or none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tpuctl import assets
from tpuctl.errors import Usage
from tpuctl.model.stack import Stack

__all__ = ["BUILD_HOURS", "Draft", "plain", "text_of", "yaml_scalar"]

LATE = 0.25  # hours that the end of a job may take beside its own
PLACEHOLDER = re.compile(r"@([a-z_]+)@")
ALONE = re.compile(r"( *(?:- )?)@([a-z_]+)@")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
CRON = re.compile(r"\S+( \S+){4}")
# GitHub's tokens are good for an hour: no step follows for longer. The first job has to bring the
# TPU up as well, within the 6 hours that GitHub gives a job.
PART, PARTS_FIRST, PARTS = 50, 5, 6
QUEUED_PARTS_FIRST, QUEUED_PATIENCE, PATIENCE = 1, 240, 60
GITLAB_PART = 150  # minutes of the three hours for which GitLab's token is good
BUILD_HOURS = 24.0  # of Cloud Build, at most


@dataclass(frozen=True)
class Draft:
    """What a pipeline says, before it is put into words. `values` are those of placeholders."""

    stack: Stack
    stack_file: str  # as it is typed
    values: Mapping[str, str]
    checked: str  # the arguments of `check` for what is run; empty: only the stack file is
    hours: float
    push: str = ""  # a branch whose pushes train
    schedule: str = ""
    is_apart: bool = False  # another file includes it, whose stages it needs


def text_of(system: str, draft: Draft) -> str:
    """The file's text. Raises Usage for what no pipeline can say."""
    filler = {"github": _github, "gitlab": _gitlab, "cloudbuild": _cloudbuild}[system]
    return filler(draft) + "\n"


def plain(text: str, where: str) -> str:
    """The same. Raises Usage where it has what no line can have."""
    if CONTROL.search(text):
        raise Usage(
            "Not for a pipeline",
            f"{text!r} has a character that no line of a pipeline can have",
            hint="Write it into a file of the repository, and name that.",
            where=where,
        )
    return text


# GitHub Actions ---------------------------------------------------------------------------------


def _github(draft: Draft) -> str:
    values = {name: _literal(value) for name, value in draft.values.items()}
    check = _literal(
        f"tpuctl check {draft.checked} --format github" if draft.checked else "tpuctl check"
    )
    is_queued = draft.stack.queue is not None
    first = QUEUED_PARTS_FIRST if is_queued else PARTS_FIRST
    parts = math.ceil((draft.hours + LATE) * 60 / PART)
    sizes = [min(parts, first)]
    while sum(sizes) < parts:
        sizes.append(min(PARTS, parts - sum(sizes)))
    names = ["train", *(f"train-{number}" for number in range(2, len(sizes) + 1))]
    values["install"] = _fill("github/install.yml", values)
    values["sign_in"] = _sign_in("", "")
    more = []
    for before, name, size in zip(names, names[1:], sizes[1:], strict=False):
        needed = ["train"] if before == "train" else ["train", before]
        follow = _follows(size, "needs.train.outputs.job", f"needs.{before}.outputs.next")
        mine = {"name": name, "needed": ", ".join(needed), "previous": before}
        mine |= {"last": str(size), "follow": follow}
        more.append(_fill("github/more.yml", values | mine))
    triggers = []
    if draft.schedule:
        triggers.append(f'schedule:\n  - cron: "{_cron(draft.schedule)}" # UTC')
    if draft.push:
        triggers.append(f"push:\n  branches: [{yaml_scalar(plain(draft.push, '--on-push'))}]")
    return _fill(
        "github/workflow.yml",
        values
        | {
            "check": check,
            "triggers": "\n".join(triggers),
            "last": str(sizes[0]),
            "follow": _follows(sizes[0], "steps.start.outputs.JOB_ID", ""),
            "patience": str(QUEUED_PATIENCE if is_queued else PATIENCE),
            "more": "\n\n".join(more),
            "trained": ", ".join(names),
            "final": names[-1],
            "ending": _ending("github", ".yml", values, draft.stack),
        },
    )


def _follows(count: int, job: str, start: str) -> str:
    """So many steps that follow the job, each with a token of its own; skipped at its end."""
    found = []
    for number in range(1, count + 1):
        before = f"steps.follow-{number - 1}.outputs"
        condition = f"if: {before}.JOB_STATE == 'running'" if number > 1 else ""
        origin = f"{before}.JOB_NEXT" if number > 1 else start
        values = {
            "sign_in": _sign_in(" again", condition),
            "number": str(number),
            "condition": condition,
            "job": _expression(job),
            "from": _expression(origin) if origin else '""',
            "part": f"{PART}m",
        }
        found.append(_fill("github/follow.yml", values))
    return "\n".join(found)


def _sign_in(again: str, condition: str) -> str:
    return _fill("github/sign-in.yml", {"again": again, "condition": condition})


def _expression(text: str) -> str:
    return "${{ " + text + " }}"


def _literal(text: str) -> str:
    """What GitHub would take for an expression, as it stands."""
    return text.replace("${{", "${{ '${{' }}")


# GitLab CI --------------------------------------------------------------------------------------


def _gitlab(draft: Draft) -> str:
    values = dict(draft.values)
    stages = [f"{'tpu-' if draft.is_apart else ''}{name}" for name in ("check", "train", "down")]
    parts = math.ceil((draft.hours + LATE) * 60 / GITLAB_PART)
    names = ["tpu-train", *(f"tpu-train-{number}" for number in range(2, parts + 1))]
    values["train_stage"] = stages[1]
    values["part"] = f"{GITLAB_PART}m"
    more = []
    cut_off = _fill("gitlab/cut-off.yml", values)
    for before, name in pairwise(names):
        mine = {"name": name, "previous": before, "cut_off": cut_off if name == names[-1] else ""}
        more.append(_fill("gitlab/more.yml", values | mine))
    push = ""
    if draft.push:
        wanted = json.dumps(plain(draft.push, "--on-push"))
        push = f'- if: $CI_PIPELINE_SOURCE == "push" && $CI_COMMIT_BRANCH == {wanted}'
    check = f"tpuctl check {draft.checked}".rstrip()
    quality = (
        f'tpuctl check {draft.checked} --format gitlab > "$CI_PROJECT_DIR/quality.json" || true\n'
    )
    report = "artifacts:\n  when: always\n  reports:\n    codequality: quality.json"
    return _fill(
        "gitlab/pipeline.yml",
        values
        | {
            "stages": "" if draft.is_apart else f"stages: [{', '.join(stages)}]",
            "cut_off": cut_off if len(names) == 1 else "",
            "check_stage": stages[0],
            "down_stage": stages[2],
            "check": f"{quality}{check}" if draft.checked else check,
            "quality": report if draft.checked else "",
            "push": push,
            "push_always": f"{push}\n  when: always" if push else "",
            "more": "\n\n".join(more),
            "ending": _ending("gitlab", ".yml", values, draft.stack),
        },
    )


# Cloud Build ------------------------------------------------------------------------------------


def _cloudbuild(draft: Draft) -> str:
    values = dict(draft.values)
    values["variables"] = f"- {yaml_scalar(f'TPUCTL_STACK_FILE={draft.stack_file}')}"
    return _fill(
        "cloudbuild/build.yaml",
        values
        | {
            "seconds": str(round(min(draft.hours + 2, BUILD_HOURS) * 3600)),
            "check": f"tpuctl check {draft.checked}" if draft.checked else "tpuctl check",
            "ending": _ending("cloudbuild", ".yaml", values, draft.stack, between="\n"),
        },
    )


# Templates --------------------------------------------------------------------------------------


def _ending(
    system: str, suffix: str, values: Mapping[str, str], stack: Stack, between: str = ""
) -> str:
    """The stack goes first, since it costs; unless its bucket goes too, with all records."""
    names = ["down", "report"] if stack.file.bucket.keep else ["report", "down"]
    return f"\n{between}".join(_fill(f"{system}/{name}{suffix}", values) for name in names)


def _fill(name: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled, without the empty line after one that is none."""
    lines: list[str] = []
    for line in (assets.templates() / "ci" / name).read_text("utf-8").splitlines():
        alone = ALONE.fullmatch(line)
        if alone is None:
            lines.append(PLACEHOLDER.sub(lambda found: values[found[1]], line))
        elif values[alone[2]]:
            margin = " " * len(alone[1])
            several = values[alone[2]].split("\n")
            lines.append(alone[1] + several[0])
            lines += [f"{margin}{one}" if one else "" for one in several[1:]]
        elif not lines or not lines[-1]:
            lines.append("@")  # with the empty line after it, this one goes
    kept = [one for one, before in zip(lines, ["", *lines], strict=False) if one or before != "@"]
    return "\n".join(one for one in kept if one != "@")


def yaml_scalar(text: str) -> str:
    """As YAML writes it: as it is, where that is safe."""
    is_plain = re.fullmatch(r"[A-Za-z./][\w./-]*", text) and text.lower() not in ("true", "no")
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _cron(text: str) -> str:
    if not CRON.fullmatch(text) or not re.fullmatch(r"[\w*/,\- ]+", text):
        raise Usage(
            "Invalid value",
            f"--schedule cannot be {text}",
            hint="Minute, hour, day, month and day of the week, in UTC:\n"
            '    --schedule "0 3 * * 1"',
            where="--schedule",
        )
    return text
