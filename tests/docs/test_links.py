"""Links between pages are valid, and commands named on pages exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "templates").rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_are_valid(page: Path) -> None:
    prose = re.sub(r"`` .*? ``", "", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(other), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/guides/before-you-pay.md",
        "docs/guides/jobs.md",
        "docs/tutorial.md",
        "docs/local-cloud.md",
        "docs/pretraining/use.md",
    ],
)
def test_commands_in_pages_exist(name: str) -> None:
    headings = re.findall(
        r"^## (tpuctl .+)$", (ROOT / "docs/reference/commands.md").read_text("utf-8"), re.MULTILINE
    )
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
    typed = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    commands = [line.replace("--cloud local ", "") for line in typed if line.startswith("tpuctl")]
    assert commands
    for command in commands:
        if command != "tpuctl --version":
            assert any(command.startswith(known_command) for known_command in headings), command
