"""Stacks of files that tests write."""

from __future__ import annotations

from pathlib import Path

from tpuctl.model.stack.stack import Stack, load_stack


def stack_from(folder: Path, text: str) -> Stack:
    """The stack of a file with this text in the folder."""
    path = folder / "tpuctl.yaml"
    path.write_text(text, "utf-8")
    return load_stack(path)


def bert_stack(folder: Path, text: str) -> Stack:
    """The stack `bert` in the project `my-project`, with the other sections of its file."""
    return stack_from(folder, f"stack: bert\nproject: {{id: my-project}}\n{text}\n")
