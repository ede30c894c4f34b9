"""Extracts the shell scripts of pipelines and checks their syntax.

With `bash -n`, and with ShellCheck if it is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml


class Reference(tuple[str, ...]):
    """The value of `!reference [job, key]`."""


class GitLabLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with GitLab's `!reference` tag."""


GitLabLoader.add_constructor(
    "!reference", lambda loader, node: Reference(loader.construct_sequence(node))
)


def scripts_of(system: str, text: str) -> Iterator[str]:
    """Each script of a pipeline as the shell receives it."""
    document = yaml.load(text, GitLabLoader)
    if system == "github":
        for job in document["jobs"].values():
            # Expressions are replaced before the shell sees them.
            yield from (
                re.sub(r"\$\{\{.*?\}\}", "text", step["run"])
                for step in job["steps"]
                if "run" in step
            )
    elif system == "gitlab":
        for job in document.values():
            yield from _gitlab_scripts(job)
    else:
        yield from (step["script"] for step in document["steps"])


def _gitlab_scripts(job: Any) -> Iterator[str]:
    for part in ("before_script", "script", "after_script"):
        lines = job.get(part, ()) if isinstance(job, Mapping) else ()
        if lines:
            yield "\n".join(line for line in lines if not isinstance(line, Reference))


def require_shell(script: str, folder: Path) -> None:
    """Fail on errors of `bash -n`, or of ShellCheck if it is installed."""
    file = folder / "script.sh"
    start = "" if script.startswith("#!") else "#!/usr/bin/env bash\n"
    file.write_text(start + script, "utf-8")
    commands = [["bash", "-n", str(file)]]
    if shutil.which("shellcheck"):
        # SC1091: files that exist only in a pipeline. SC2154, SC2153: its variables.
        commands.append(["shellcheck", "--exclude=SC1091,SC2154,SC2153", str(file)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
