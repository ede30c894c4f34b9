"""Emulates the part of Cloud Build that the builds under test use.

Steps are really executed, one after another. Faked: the steps' images (steps run on this computer)
and the build's account (a caller of the local cloud). Anything else is an error.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.ci.hosts import Callers, Host

KEYS = {"serviceAccount", "timeout", "options", "steps"}
STEP_KEYS = {"id", "name", "dir", "script", "allowFailure"}


@dataclass
class Build:
    """A build, and the results of its steps."""

    text: str
    host: Host
    callers: Callers
    repository: Path
    results: dict[str, str] = field(default_factory=dict)  # by step id
    output: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0  # of the step that failed the build

    def run(self) -> Build:
        document = yaml.safe_load(self.text)
        assert {*document} <= KEYS, f"not emulated: {set(document) - KEYS}"
        env = self.host.new_machine()
        machine = Path(env["TPUCTL_CONFIG_HOME"]).parent
        workspace = machine / "workspace"
        shutil.copytree(self.repository, workspace, symlinks=True)
        env["TPUCTL_LOCAL_CALLER"] = self.callers.sign_in()
        env |= self._options(document["options"], machine)
        for step in document["steps"]:
            assert {*step} <= STEP_KEYS, f"not emulated: {set(step) - STEP_KEYS}"
            output = machine / f"output-{step['id']}"
            output.mkdir()
            step_env = env | {"BUILDER_OUTPUT": str(output)}
            done = self.host.run(step["script"], workspace / step.get("dir", "."), step_env)
            self.output[step["id"]] = done.output
            self.results[step["id"]] = "failure" if done.code else "success"
            if (output / "output").exists():
                self.outputs[step["id"]] = (output / "output").read_text("utf-8")
            if done.code and not step.get("allowFailure"):
                self.exit_code = done.code
                break
        return self

    @staticmethod
    def _options(options: dict[str, Any], machine: Path) -> dict[str, str]:
        """The environment variables; volumes are folders next to the workspace."""
        variables = dict(item.split("=", 1) for item in options["env"])
        for volume in options["volumes"]:
            folder = machine / volume["name"]
            folder.mkdir()
            variables = {k: str(folder) if v == volume["path"] else v for k, v in variables.items()}
        return variables
