"""The text of a pipeline, rendered from the templates in `templates/ci`.

A placeholder is a word between two @; one alone on its line may expand to several lines or none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import yaml

from tpuctl import assets
from tpuctl.errors import Usage
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import CONTROL_CHARACTERS

SLACK_HOURS = 0.25  # added to the job's own hours for its shutdown
PLACEHOLDER = re.compile(r"@([a-z_]+)@")
WHOLE_LINE = re.compile(r"( *(?:- )?)@([a-z_]+)@")
CRON = re.compile(r"\S+( \S+){4}")
# Minutes that a job follows the log. GitHub ends jobs after 6 hours, in which the first one must
# also bring the TPU up. It issues tokens until then, so that google-auth renews its own
# (google-github-actions/auth#267).
GITHUB_FIRST_MINUTES, GITHUB_MINUTES = 250, 300
QUEUED_FIRST_MINUTES, QUEUED_WAIT_MINUTES, WAIT_MINUTES = 50, 240, 60
GITLAB_MINUTES = 150  # GitLab's token expires after three hours
MAX_BUILD_HOURS = 24.0  # limit of Cloud Build


@dataclass(frozen=True)
class Draft:
    """The content of a pipeline. `values` are those of the placeholders."""

    stack: Stack
    stack_file: str  # as typed by the user
    values: Mapping[str, str]
    check_arguments: str  # for `tpuctl check`; empty to check only the stack file
    hours: float
    push: str = ""  # branch that triggers training
    schedule: str = ""
    is_included: bool = False  # included by another file, which defines the stages


def text_of(system: str, draft: Draft) -> str:
    """Render the file. Raises Usage for values that a pipeline cannot contain."""
    filler = {"github": _github, "gitlab": _gitlab, "cloudbuild": _cloudbuild}[system]
    return filler(draft) + "\n"


def require_plain(text: str, where: str) -> str:
    """Return the text unchanged. Raises Usage if it contains control characters."""
    if CONTROL_CHARACTERS.search(text):
        raise Usage(
            "Invalid character",
            f"{text!r} contains a control character, which a pipeline cannot contain",
            hint="Put it into a file in the repository and use that.",
            where=where,
        )
    return text


# GitHub Actions ---------------------------------------------------------------------------------


def _github(draft: Draft) -> str:
    values = {name: _literal(value) for name, value in draft.values.items()}
    check = _literal(
        f"tpuctl check {draft.check_arguments} --format github"
        if draft.check_arguments
        else "tpuctl check"
    )
    is_queued = draft.stack.queue is not None
    first = QUEUED_FIRST_MINUTES if is_queued else GITHUB_FIRST_MINUTES
    remaining = max(0.0, (draft.hours + SLACK_HOURS) * 60 - first)
    count = 1 + math.ceil(remaining / GITHUB_MINUTES)
    names = ["train", *(f"train-{number}" for number in range(2, count + 1))]
    values["install"] = _fill("github/install.yml", values)
    values["sign_in"] = _fill("github/sign-in.yml", values)
    more = []
    for before, name in pairwise(names):
        needed = ["train"] if before == "train" else ["train", before]
        origin = _expression(f"needs.{before}.outputs.next")
        follow = _follow_step("needs.train.outputs.job", origin, GITHUB_MINUTES)
        job_values = {"name": name, "needed": ", ".join(needed), "previous": before}
        job_values["follow"] = follow
        more.append(_fill("github/more.yml", values | job_values))
    triggers = []
    if draft.schedule:
        triggers.append(f'schedule:\n  - cron: "{_cron(draft.schedule)}" # UTC')
    if draft.push:
        triggers.append(
            f"push:\n  branches: [{yaml_scalar(require_plain(draft.push, '--on-push'))}]"
        )
    return _fill(
        "github/workflow.yml",
        values
        | {
            "check": check,
            "triggers": "\n".join(triggers),
            "follow": _follow_step("steps.start.outputs.JOB_ID", '""', first),
            "up_timeout": str(QUEUED_WAIT_MINUTES if is_queued else WAIT_MINUTES),
            "more": "\n\n".join(more),
            "trained": ", ".join(names),
            "final": names[-1],
            "ending": _final_steps("github", ".yml", values, draft.stack),
        },
    )


def _follow_step(job: str, origin: str, minutes: int) -> str:
    values = {"job": _expression(job), "from": origin, "part": f"{minutes}m"}
    return _fill("github/follow.yml", values)


def _expression(text: str) -> str:
    return "${{ " + text + " }}"


def _literal(text: str) -> str:
    """Escape text that GitHub would evaluate as an expression."""
    return text.replace("${{", "${{ '${{' }}")


# GitLab CI --------------------------------------------------------------------------------------


def _gitlab(draft: Draft) -> str:
    values = _with_dollars(draft.values, "variables")
    stages = [f"{'tpu-' if draft.is_included else ''}{name}" for name in ("check", "train", "down")]
    parts = math.ceil((draft.hours + SLACK_HOURS) * 60 / GITLAB_MINUTES)
    names = ["tpu-train", *(f"tpu-train-{number}" for number in range(2, parts + 1))]
    values["train_stage"] = stages[1]
    values["part"] = f"{GITLAB_MINUTES}m"
    more = []
    fail_if_running = _fill("gitlab/fail-if-running.yml", values)
    for before, name in pairwise(names):
        job_values = {
            "name": name,
            "previous": before,
            "fail_if_running": fail_if_running if name == names[-1] else "",
        }
        more.append(_fill("gitlab/more.yml", values | job_values))
    push = ""
    if draft.push:
        branch = _gitlab_string(require_plain(draft.push, "--on-push"))
        condition = f'$CI_PIPELINE_SOURCE == "push" && $CI_COMMIT_BRANCH == {branch}'
        is_plain = not re.search(": | #", condition)
        push = f"- if: {condition if is_plain else json.dumps(condition, ensure_ascii=False)}"
    check = f"tpuctl check {draft.check_arguments}".rstrip()
    quality = f'{check} --format gitlab > "$CI_PROJECT_DIR/quality.json" || true\n'
    report = "artifacts:\n  when: always\n  reports:\n    codequality: quality.json"
    return _fill(
        "gitlab/pipeline.yml",
        values
        | {
            "stages": "" if draft.is_included else f"stages: [{', '.join(stages)}]",
            "fail_if_running": fail_if_running if len(names) == 1 else "",
            "check_stage": stages[0],
            "down_stage": stages[2],
            "check": f"{quality}{check}" if draft.check_arguments else check,
            "quality": report if draft.check_arguments else "",
            "push": push,
            "push_always": f"{push}\n  when: always" if push else "",
            "more": "\n\n".join(more),
            "ending": _final_steps("gitlab", ".yml", values, draft.stack),
        },
    )


def _gitlab_string(text: str) -> str:
    """A string of GitLab's conditions, which have no escapes. Raises Usage."""
    for quote in "\"'":
        if quote not in text:
            return f"{quote}{text}{quote}"
    raise Usage(
        "Invalid character",
        f"{text!r} contains both kinds of quotes, which a condition of GitLab cannot contain",
        hint="Pass another branch.",
        where="--on-push",
    )


# Cloud Build ------------------------------------------------------------------------------------


def _cloudbuild(draft: Draft) -> str:
    setting = yaml_scalar(f"TPUCTL_STACK_FILE={draft.stack_file}")
    values = _with_dollars({**draft.values, "variables": f"- {setting}"}, "variables", "folder")
    return _fill(
        "cloudbuild/build.yaml",
        values
        | {
            "seconds": str(round(min(draft.hours + 2, MAX_BUILD_HOURS) * 3600)),
            "check": f"tpuctl check {draft.check_arguments}"
            if draft.check_arguments
            else "tpuctl check",
            "ending": _final_steps("cloudbuild", ".yaml", values, draft.stack, between="\n"),
        },
    )


def _with_dollars(values: Mapping[str, str], *names: str) -> dict[str, str]:
    """Escape the $ of values in which the system would replace variables; scripts are not."""
    return {**values, **{name: values[name].replace("$", "$$") for name in names}}


# Templates --------------------------------------------------------------------------------------


def _final_steps(
    system: str, suffix: str, values: Mapping[str, str], stack: Stack, between: str = ""
) -> str:
    """`down` first, since the stack costs money, unless it deletes the bucket with the records."""
    names = ["down", "report"] if stack.file.bucket.keep else ["report", "down"]
    return f"\n{between}".join(_fill(f"{system}/{name}{suffix}", values) for name in names)


def _fill(name: str, values: Mapping[str, str]) -> str:
    """Fill a template's placeholders; an empty one is removed with the blank line after it."""
    lines: list[str] = []
    for line in (assets.templates() / "ci" / name).read_text("utf-8").splitlines():
        whole_line = WHOLE_LINE.fullmatch(line)
        if whole_line is None:
            lines.append(PLACEHOLDER.sub(lambda match: values[match[1]], line))
        elif values[whole_line[2]]:
            margin = " " * len(whole_line[1])
            value_lines = values[whole_line[2]].split("\n")
            lines.append(whole_line[1] + value_lines[0])
            lines += [f"{margin}{extra}" if extra else "" for extra in value_lines[1:]]
        elif not lines or not lines[-1]:
            lines.append("@")  # removed below, with the blank line after it
    remaining = [
        line for line, before in zip(lines, ["", *lines], strict=False) if line or before != "@"
    ]
    return "\n".join(line for line in remaining if line != "@")


def yaml_scalar(text: str) -> str:
    """A YAML scalar, on one line: unquoted if versions of YAML agree that it is a string."""
    is_plain = re.fullmatch(r"[A-Za-z./][A-Za-z0-9_./-]+|\.", text)
    return (
        text if is_plain and yaml.safe_load(text) == text else json.dumps(text, ensure_ascii=False)
    )


def _cron(text: str) -> str:
    if not CRON.fullmatch(text) or not re.fullmatch(r"[\w*/,\- ]+", text):
        raise Usage(
            "Invalid value",
            f"--schedule: {text} is not a cron expression",
            hint="Use five fields (minute, hour, day, month, day of the week), in UTC:\n"
            '    --schedule "0 3 * * 1"',
            where="--schedule",
        )
    return text
