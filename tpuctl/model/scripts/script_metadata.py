"""Dependencies in a comment of a script (packaging.python.org, "Inline script metadata")."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tpuctl.errors import Usage
from tpuctl.files import is_file
from tpuctl.model.scripts.toml_documents import parse_toml

START, END = "# /// script", "# ///"


class ScriptMetadata(NamedTuple):
    """The table in the comment, and the line where the comment starts."""

    document: dict[str, Any]
    line: int

    @property
    def has_dependencies(self) -> bool:
        """Whether it lists the script's dependencies, which may be none: without a list, those of
        the folder apply."""
        return "dependencies" in self.document

    @property
    def dependencies(self) -> list[str]:
        listed = self.document.get("dependencies", [])
        return [str(requirement) for requirement in listed] if isinstance(listed, list) else []


def read_script_metadata(script: Path | None) -> ScriptMetadata | None:
    """The metadata of a script; None without any, or if the file cannot be read. Raises Usage if
    it is invalid."""
    if script is None or not is_file(script):
        return None
    try:
        text = script.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    lines = [line.rstrip() for line in text.split("\n")] if START in text else []
    if START not in lines:
        return None
    first = lines.index(START) + 1
    last = next(
        (number for number, line in enumerate(lines[first:], first) if line[:1] != "#"), len(lines)
    )
    block = lines[first:last]
    if END not in block:
        return None
    content = block[: len(block) - 1 - block[::-1].index(END)]
    try:
        document = parse_toml("\n".join(line[2:] for line in content))
    except ValueError as error:
        raise Usage(
            "Invalid script metadata",
            str(error),
            where=f"{script}:{first}",
            hint="Fix the comment that starts with `# /// script` (PEP 723).",
        ) from None
    return ScriptMetadata(document, first)
