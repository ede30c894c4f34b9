"""GitLab CI, as far as the pipelines under test need it.

Scripts are really run: `before_script` and `script` in one shell, `after_script` in another. What
an identity token and a container's image would be is listed in `STAND_INS`; anything else that a
pipeline says is an error.
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

__all__ = ["STAND_INS", "Job", "Pipeline"]

STAND_INS = {
    "image": "the computer that the tests run on",
    "id_tokens": "a made-up token, and a caller of the local cloud",
    "resource_group": "noted: one pipeline runs at a time here",
    "timeout": "noted",
    "interruptible": "noted",
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
    """One job of a pipeline."""

    result: str = "success"
    output: str = ""
    dotenv: dict[str, str] = field(default_factory=dict)
    folder: Path = Path()
    credentials: str = ""  # what it would sign in to Google with


class Pipeline:
    """One pipeline, for what started it."""

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
        """Stage by stage; jobs of one stage in their order, which is that of their needs."""
        for stage in self.stages:
            for name in self.document:
                job = self._whole(name)
                if not name.startswith(".") and job["stage"] == stage:
                    self._run(name, job)
        return self.jobs

    def _whole(self, name: str) -> dict[str, Any]:
        """With all that it extends, merged as GitLab merges: tables deeply, lists not at all."""
        definition = self.document[name]
        assert {*definition} <= KEYS, f"not emulated: {set(definition) - KEYS}"
        if "extends" not in definition:
            return dict(definition)
        merged = self._whole(definition["extends"])
        for key, value in definition.items():
            is_table = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if is_table else value
        return merged

    def _when(self, rules: list[Mapping[str, str]]) -> str | None:
        """When the first rule that fits says; None where none does."""
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
        assert {*needed} <= {*self.jobs}, f"{name} needs what is not in this pipeline"
        is_wanted = all(self.jobs[need].result == "success" for need in needed)
        if self.is_cancelled:  # whatever its rules say
            self.jobs[name] = Job("canceled")
        elif when == "always" or is_wanted:
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
        made = Job(result, done.output, folder=folder)
        if "after_script" in job:
            after = "\n".join(self._lines(job["after_script"]))
            made.output += self.host.run(
                after, folder, env | {"CI_JOB_STATUS": result}, *SHELL
            ).output
        self._keep(job.get("artifacts", {}), made)
        file = Path(variables.get("GOOGLE_APPLICATION_CREDENTIALS", ""))
        made.credentials = file.read_text("utf-8") if file.is_file() else ""
        return made

    def _lines(self, script: list[Any]) -> list[str]:
        lines = []
        for line in script:
            if isinstance(line, Reference):
                lines += self._lines(self.document[line[0]][line[1]])
            else:
                lines.append(line)
        return lines

    @staticmethod
    def _keep(artifacts: Mapping[str, Any], job: Job) -> None:
        if artifacts.get("when", "on_success") != "always" and job.result != "success":
            return
        name = artifacts.get("reports", {}).get("dotenv")
        if name and (job.folder / name).exists():
            lines = (job.folder / name).read_text("utf-8").splitlines()
            job.dotenv = {key: value for key, _, value in (line.partition("=") for line in lines)}
