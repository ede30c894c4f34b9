"""Emulates the part of GitLab CI that the pipelines under test use.

Scripts are really executed: `before_script` and `script` in one shell, `after_script` in another.
`STAND_INS` lists what is faked or ignored; anything else in a pipeline is an error.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.ci.hosts import Callers, Host
from tests.ci.shells import GitLabLoader, Reference

STAND_INS = {
    "image": "jobs run on this computer",
    "id_tokens": "a fake token, and a caller of the local cloud",
    "resource_group": "ignored: only one pipeline runs at a time",
    "timeout": "ignored",
    "interruptible": "ignored",
}
KEYS = {
    "stage",
    "script",
    "before_script",
    "after_script",
    "variables",
    "rules",
    "needs",
    "extends",
}
KEYS |= {"artifacts", "dependencies", *STAND_INS}
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
RULE = re.compile(r'\$(\w+) == "([^"]*)"')


@dataclass
class Job:
    """A job of a pipeline."""

    result: str = "success"
    output: str = ""
    dotenv: dict[str, str] = field(default_factory=dict)
    folder: Path = Path()
    credentials: str = ""  # the credentials file that it would sign in to Google with


class Pipeline:
    """A pipeline, started by `source`."""

    def __init__(
        self, text: str, host: Host, callers: Callers, repository: Path, source: str = "web"
    ) -> None:
        document = yaml.load(text, GitLabLoader)
        self.stages = document.pop("stages")
        self.document = document
        self.host, self.callers, self.repository = host, callers, repository
        self.variables = {"CI_PIPELINE_SOURCE": source, "CI_COMMIT_BRANCH": "main"}
        self.jobs: dict[str, Job] = {}
        self.is_cancelled = False

    @property
    def result(self) -> str:
        results = [job.result for job in self.jobs.values()]
        return next((result for result in ("canceled", "failed") if result in results), "success")

    def run(self) -> dict[str, Job]:
        """Run the stages in order, and each stage's jobs in file order, which satisfies `needs`."""
        for stage in self.stages:
            for name in self.document:
                job = self._merged_definition(name)
                if not name.startswith(".") and job["stage"] == stage:
                    self._run(name, job)
        return self.jobs

    def _merged_definition(self, name: str) -> dict[str, Any]:
        """A job merged with the one it extends: mappings are merged, lists replaced."""
        definition = self.document[name]
        assert {*definition} <= KEYS, f"not emulated: {set(definition) - KEYS}"
        if "extends" not in definition:
            return dict(definition)
        merged = self._merged_definition(definition["extends"])
        for key, value in definition.items():
            is_table = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if is_table else value
        return merged

    def _when(self, rules: list[Mapping[str, str]]) -> str | None:
        """The `when` of the first matching rule; None without a match."""
        for rule in rules:
            for part in rule["if"].split(" && "):
                match = RULE.fullmatch(part)
                assert match is not None, f"not emulated: {part}"
                if self.variables[match[1]] != match[2]:
                    break
            else:
                return rule.get("when", "on_success")
        return None

    def _run(self, name: str, job: dict[str, Any]) -> None:
        when = self._when(job["rules"])
        if when is None:
            return
        needed = job.get("needs", list(self.jobs))
        assert {*needed} <= {*self.jobs}, f"{name} needs jobs that are not in this pipeline"
        needs_succeeded = all(self.jobs[need].result == "success" for need in needed)
        if self.is_cancelled:  # regardless of the job's rules
            self.jobs[name] = Job("canceled")
        elif when == "always" or needs_succeeded:
            sources = job.get("dependencies", needed)
            passed = {k: v for source in sources for k, v in self.jobs[source].dotenv.items()}
            self.jobs[name] = self._start(job, passed)
        else:
            self.jobs[name] = Job("skipped")

    def _start(self, job: dict[str, Any], passed: Mapping[str, str]) -> Job:
        env = self.host.new_machine()
        machine = Path(env["TPUCTL_CONFIG_HOME"]).parent
        folder, scratch = machine / "project", machine / "scratch"
        shutil.copytree(self.repository, folder, symlinks=True)
        scratch.mkdir()
        variables = {k: str(v).replace("/tmp/", f"{scratch}/") for k, v in job["variables"].items()}
        env |= {**self.variables, **passed, **variables, "CI_PROJECT_DIR": str(folder)}
        env["CI"] = env["GITLAB_CI"] = "true"
        if "id_tokens" in job:
            ((variable, token),) = job["id_tokens"].items()
            assert token["aud"].startswith("https://iam.googleapis.com/projects/")
            env[variable] = "made.up.token"
            env["TPUCTL_LOCAL_CALLER"] = self.callers.sign_in()
        script = "\n".join(self._lines(job["before_script"]) + self._lines(job["script"]))
        done = self.host.run(script, folder, env, *SHELL)
        result = "canceled" if done.was_cancelled else "failed" if done.code else "success"
        self.is_cancelled |= done.was_cancelled
        finished_job = Job(result, done.output, folder=folder)
        if "after_script" in job:
            after = "\n".join(self._lines(job["after_script"]))
            finished_job.output += self.host.run(
                after, folder, env | {"CI_JOB_STATUS": result}, *SHELL
            ).output
        self._load_dotenv(job.get("artifacts", {}), finished_job)
        file = Path(variables.get("GOOGLE_APPLICATION_CREDENTIALS", ""))
        finished_job.credentials = file.read_text("utf-8") if file.is_file() else ""
        return finished_job

    def _lines(self, script: list[Any]) -> list[str]:
        lines = []
        for line in script:
            if isinstance(line, Reference):
                lines += self._lines(self.document[line[0]][line[1]])
            else:
                lines.append(line)
        return lines

    @staticmethod
    def _load_dotenv(artifacts: Mapping[str, Any], job: Job) -> None:
        if artifacts.get("when", "on_success") != "always" and job.result != "success":
            return
        name = artifacts.get("reports", {}).get("dotenv")
        if name and (job.folder / name).exists():
            lines = (job.folder / name).read_text("utf-8").splitlines()
            job.dotenv = {key: value for key, _, value in (line.partition("=") for line in lines)}
