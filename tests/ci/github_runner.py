"""Emulates the part of GitHub Actions that the workflows under test use.

`run:` steps are really executed, in order, with GitHub's shell and environment; `uses:` steps are
replaced by the functions in `STAND_INS`. Anything else in a workflow is an error.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.ci.expressions import evaluate, interpolate, is_true
from tests.ci.hosts import Callers, Host

JOB_KEYS = {"needs", "if", "runs-on", "timeout-minutes", "permissions", "outputs", "steps", "env"}
STEP_KEYS = {
    *("name", "id", "if", "run", "uses", "with", "env", "timeout-minutes", "continue-on-error"),
}
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")  # what `shell: bash` means
PINNED = re.compile(r"([\w-]+/[\w-]+)@[0-9a-f]{40}")


@dataclass
class Job:
    """A job of a run as other jobs see it, and the results of its steps."""

    result: str = "success"
    outputs: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[str, str]] = field(default_factory=list)  # name and outcome
    output: str = ""
    summary: str = ""

    def outcome(self, name: str) -> str:
        return dict(self.steps)[name]


@dataclass
class Actions:
    """What the stand-ins of actions have access to."""

    host: Host
    callers: Callers
    repository: Path
    artifacts: Path


@dataclass
class _Runner:
    """A job's machine."""

    actions: Actions
    workspace: Path
    temp: Path
    env: dict[str, str]
    permissions: Mapping[str, str]


def _checkout(runner: _Runner, inputs: Mapping[str, Any]) -> dict[str, str]:
    source = runner.actions.repository
    shutil.copytree(source, runner.workspace, dirs_exist_ok=True, symlinks=True)
    return {}


def _auth(runner: _Runner, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Sign in a new caller, and write the credentials file that the action leaves behind."""
    assert runner.permissions.get("id-token") == "write", (
        "the job has no permission to request a token"
    )
    assert re.fullmatch(r"[\w-]+@[\w-]+\.iam\.gserviceaccount\.com", inputs["service_account"])
    assert inputs["workload_identity_provider"].startswith("projects/")
    member = runner.actions.callers.sign_in()
    key = runner.workspace / f"gha-creds-{len(runner.actions.callers.members)}.json"
    key.write_text('{"type": "external_account", "is": "as good as a key"}')
    runner.env["TPUCTL_LOCAL_CALLER"] = member
    return {"credentials_file_path": str(key)}


def _upload(runner: _Runner, inputs: Mapping[str, Any]) -> dict[str, str]:
    source = Path(inputs["path"])
    if not source.exists():
        assert inputs["if-no-files-found"] == "ignore"
        return {}
    target = runner.actions.artifacts / inputs["name"]
    target.mkdir(parents=True)
    shutil.copy(source, target)
    return {"artifact-url": f"https://github.invalid/artifacts/{inputs['name']}"}


STAND_INS: dict[str, Callable[[_Runner, Mapping[str, Any]], dict[str, str]]] = {
    "actions/checkout": _checkout,
    "actions/setup-python": lambda runner, inputs: {},
    "actions/upload-artifact": _upload,
    "google-github-actions/auth": _auth,
}


class Workflow:
    """A run of a workflow for an event."""

    def __init__(self, text: str, actions: Actions, event: str = "workflow_dispatch") -> None:
        self.document = yaml.safe_load(text)
        self.actions = actions
        self.github = {
            "event_name": event,
            "ref": "refs/pull/7/merge" if event == "pull_request" else "refs/heads/main",
        }
        self.is_cancelled = False
        self.jobs: dict[str, Job] = {}

    @property
    def result(self) -> str:
        results = [job.result for job in self.jobs.values()]
        for result in ("cancelled", "failure"):
            if result in results:
                return result
        return "success"

    @property
    def group(self) -> str:
        """The concurrency group."""
        group = interpolate(self.document["concurrency"]["group"], {"github": self.github})
        return str(group)

    @property
    def cancels_others(self) -> bool:
        text = self.document["concurrency"]["cancel-in-progress"]
        return bool(evaluate(text.strip()[3:-2], {"github": self.github}))

    def run(self) -> dict[str, Job]:
        """Run all jobs, each after the jobs it needs."""
        waiting = dict(self.document["jobs"])
        while waiting:
            ready = [n for n, job in waiting.items() if {*self._needs(job)} <= {*self.jobs}]
            assert ready, f"circular `needs`: {list(waiting)}"
            for name in ready:
                self.jobs[name] = self._job(waiting.pop(name))
        return self.jobs

    @staticmethod
    def _needs(job: Mapping[str, Any]) -> list[str]:
        needs = job.get("needs", [])
        return [needs] if isinstance(needs, str) else list(needs)

    def _job(self, job: Mapping[str, Any]) -> Job:
        assert {*job} <= JOB_KEYS, f"not emulated: {set(job) - JOB_KEYS}"
        needed = {name: self.jobs[name] for name in self._needs(job)}
        results = [job.result for job in needed.values()]
        needs = {name: {"result": o.result, "outputs": o.outputs} for name, o in needed.items()}
        functions = {
            "always": lambda: True,
            "cancelled": lambda: self.is_cancelled,
            "failure": lambda: "failure" in results,
            "success": lambda: not self.is_cancelled and {*results} <= {"success"},
        }
        context: dict[str, Any] = {"github": self.github, "needs": needs}
        if not is_true(job.get("if"), context, functions):
            return Job("cancelled" if self.is_cancelled and "if" not in job else "skipped")
        return self._steps(job, context)

    def _steps(self, job: Mapping[str, Any], context: dict[str, Any]) -> Job:
        env = self.actions.host.new_machine()
        home = Path(env["TPUCTL_CONFIG_HOME"]).parent
        runner = _Runner(self.actions, home / "work", home / "temp", env, self._permissions(job))
        runner.workspace.mkdir()
        runner.temp.mkdir()
        env |= {"GITHUB_WORKSPACE": str(runner.workspace), "RUNNER_TEMP": str(runner.temp)}
        env |= {"GITHUB_ACTIONS": "true", "CI": "true"}
        context |= {"steps": {}, "runner": {"temp": str(runner.temp)}}
        defined = {**self.document.get("env", {}), **job.get("env", {})}
        context["env"] = {name: interpolate(value, context) for name, value in defined.items()}
        env |= context["env"]
        done = Job()
        for step in job["steps"]:
            self._step(step, runner, context, done)
        done.outputs = {
            name: interpolate(text, context) for name, text in job.get("outputs", {}).items()
        }
        return done

    def _permissions(self, job: Mapping[str, Any]) -> Mapping[str, str]:
        """The permissions of the job's token; none for pull requests from forks."""
        permissions = job.get("permissions", self.document["permissions"])
        return {} if self.github["event_name"] == "pull_request" else permissions

    def _step(
        self, step: Mapping[str, Any], runner: _Runner, context: dict[str, Any], done: Job
    ) -> None:
        assert {*step} <= STEP_KEYS, f"not emulated: {set(step) - STEP_KEYS}"
        name = str(step.get("name", step.get("uses", "").partition("@")[0]))
        functions = {
            "always": lambda: True,
            "cancelled": lambda: done.result == "cancelled",
            "failure": lambda: done.result == "failure",
            "success": lambda: done.result == "success",
        }
        if not is_true(step.get("if"), context, functions):
            done.steps.append((name, "skipped"))
            return
        step_env = {key: str(interpolate(v, context)) for key, v in step.get("env", {}).items()}
        if "uses" in step:
            outputs, outcome = self._uses(step, runner, context), "success"
        else:
            outputs, outcome = self._run(step, runner, context, {**runner.env, **step_env}, done)
        if "id" in step:
            context["steps"][step["id"]] = {"outputs": outputs, "outcome": outcome}
        done.steps.append((name, outcome))
        if outcome == "cancelled":
            self.is_cancelled = True
            done.result = "cancelled"
        elif outcome == "failure" and not step.get("continue-on-error"):
            done.result = "failure"

    def _uses(
        self, step: Mapping[str, Any], runner: _Runner, context: dict[str, Any]
    ) -> dict[str, str]:
        match = PINNED.fullmatch(step["uses"])
        assert match is not None, f"not pinned to a commit: {step['uses']}"
        inputs = {key: interpolate(value, context) for key, value in step.get("with", {}).items()}
        return STAND_INS[match[1]](runner, inputs)

    def _run(
        self,
        step: Mapping[str, Any],
        runner: _Runner,
        context: dict[str, Any],
        env: dict[str, str],
        done: Job,
    ) -> tuple[dict[str, str], str]:
        defaults = self.document["defaults"]["run"]
        assert defaults["shell"] == "bash"
        files = {}
        for name in ("OUTPUT", "ENV", "PATH", "STEP_SUMMARY"):
            files[name] = runner.temp / f"{name.lower()}-{len(done.steps)}"
            files[name].touch()
            env[f"GITHUB_{name}"] = str(files[name])
        script = interpolate(step["run"], context)
        folder = runner.workspace / defaults["working-directory"]
        script_result = self.actions.host.run(script, folder, env, *SHELL)
        done.output += script_result.output
        done.summary += files["STEP_SUMMARY"].read_text("utf-8")
        runner.env |= _pairs(files["ENV"])
        for line in files["PATH"].read_text("utf-8").splitlines():
            runner.env["PATH"] = f"{line}:{runner.env['PATH']}"
        outcome = (
            "cancelled"
            if script_result.was_cancelled
            else "failure"
            if script_result.code
            else "success"
        )
        return _pairs(files["OUTPUT"]), outcome


def _pairs(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text("utf-8").splitlines() if line]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
