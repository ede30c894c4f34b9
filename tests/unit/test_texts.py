"""Every kind of text that users see is collected, and is in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.texts import comment_texts, module_texts, texts
from tpuctl.cli.app import command_line
from tpuctl.model.stack.schema import StackFile
from tpuctl.preflight.rules import RULES

# Words that a fluent speaker would not say to a user.
QUAINT = re.compile(
    r"\b(told|anew|nobody|whoever|in vain|be had|so many (seconds|times)|(is|are) to come)\b", re.I
)


@pytest.fixture(scope="module")
def text_lines() -> dict[str, list[str]]:
    """By where they are."""
    return texts()


@pytest.fixture(scope="module")
def all_texts(text_lines: dict[str, list[str]]) -> str:
    """Without their marks of code."""
    return "\n".join(text for lines in text_lines.values() for text in lines).replace("`", "")


def normalize(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def commands(group: Any) -> Iterator[Any]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield command
        if hasattr(command, "list_commands"):
            yield from commands(command)


def test_collection_has_help_of_every_command_and_option(all_texts: str) -> None:
    helps = [command.help for command in commands(command_line())]
    helps += [
        parameter.help
        for command in commands(command_line())
        for parameter in command.params
        if getattr(parameter, "help", None) and parameter.name != "help"
    ]
    assert len(helps) > 200
    missing = [text for text in map(normalize, helps) if " " in text and text not in all_texts]
    # The collection has only parts of texts that are composed at runtime.
    assert len(missing) < 0.1 * len(helps), missing


def test_collection_has_description_of_every_stack_file_key(all_texts: str) -> None:
    schema = StackFile.model_json_schema()
    descriptions = [
        field["description"]
        for section in [schema, *schema["$defs"].values()]
        for field in section["properties"].values()
        if "description" in field
    ]
    missing = [text for text in map(normalize, descriptions) if text not in all_texts]
    assert len(descriptions) > 40
    assert len(missing) <= 1, "the description of secrets is composed at runtime"


def test_collection_has_summary_of_every_rule(all_texts: str) -> None:
    assert not [rule.code for rule in RULES.values() if normalize(rule.summary) not in all_texts]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('raise Usage("No such job", f"no job {job.id}")', ["No such job", "no job {id}"]),
        ('"""What a module does."""', []),
        ('def f():\n    """What it does."""', []),
        ('print(f"{len(jobs)} jobs are running")', ["{…} jobs are running"]),
        ('re.compile("two words")', []),
        ('NAME = "word"', []),
    ],
)
def test_texts_of_module(source: str, expected: list[str]) -> None:
    assert list(module_texts(source, "tpuctl/flows/stack/up.py")) == expected


def test_docstring_of_command_is_a_text() -> None:
    source = 'def stop(context: Context) -> None:\n    """Stop a job."""'
    assert list(module_texts(source, "tpuctl/cli/jobs/job.py")) == ["Stop a job."]


def test_comments_of_template_are_texts() -> None:
    assert list(comment_texts("stack: a  # Prefix of every name\nzone: b")) == [
        "Prefix of every name"
    ]


def test_texts_are_in_plain_words(text_lines: dict[str, list[str]]) -> None:
    assert len(text_lines) > 300
    lines = [(name, text) for name, lines in text_lines.items() for text in lines]
    assert not [(name, text) for name, text in lines if QUAINT.search(text)]
