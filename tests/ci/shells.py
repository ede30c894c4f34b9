"""The shell scripts in pipelines, and whether they are shell at all.

`bash -n` reads them; where ShellCheck is installed it looks for what goes wrong in them as well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["GitLabLoader", "require_shell", "scripts_of"]


class Reference(tuple[str, ...]):
    """What `!reference [job, key]` leads to."""


class GitLabLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with GitLab's one tag of its own."""


GitLabLoader.add_constructor(
    "!reference", lambda loader, node: Reference(loader.construct_sequence(node))
)


def scripts_of(system: str, text: str) -> Iterator[str]:
    """Each script of a pipeline, as the system hands it to a shell."""
    document = yaml.load(text, GitLabLoader)
    if system == "github":
        for job in document["jobs"].values():
            # An expression becomes text before the shell sees it.
            yield from (
                re.sub(r"\$\{\{.*?\}\}", "text", step["run"])
                for step in job["steps"]
                if "run" in step
            )
    elif system == "gitlab":
        for job in document.values():
            yield from _of_gitlab(job)
    else:
        yield from (step["script"] for step in document["steps"])


def _of_gitlab(job: Any) -> Iterator[str]:
    for part in ("before_script", "script", "after_script"):
        lines = job.get(part, ()) if isinstance(job, Mapping) else ()
        if lines:
            yield "\n".join(line for line in lines if not isinstance(line, Reference))


def require_shell(script: str, folder: Path) -> None:
    """Fails for what bash cannot read, or ShellCheck, where there is one, finds wrong."""
    file = folder / "script.sh"
    start = "" if script.startswith("#!") else "#!/usr/bin/env bash\n"
    file.write_text(start + script, "utf-8")
    commands = [["bash", "-n", str(file)]]
    if shutil.which("shellcheck"):
        # SC1091: files that are only there in a pipeline. SC2154, SC2153: its variables.
        commands.append(["shellcheck", "--exclude=SC1091,SC2154,SC2153", str(file)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
