"""Every error has a hint, and every command in it is valid."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.command_lines import parse
from tests.support.hints import COMMAND, commands_in_texts, diagnostic_sites
from tpuctl.cli.help.commands import COMMANDS
from tpuctl.cli.jobs.script_arguments import AFTER_DASHES
from tpuctl.model.troubleshooting.known_errors import KnownError, table

# Diagnostics without a hint, by module and summary, with the reason.
WITHOUT = {
    (
        "preflight/submit_gate.py",
        "Script will not run on a TPU",
    ): "the diagnostic next to it has one",
}
# Examples of hints that are composed, with 1 for each inserted value.
PUT_IN = {
    "tpuctl 1": "tpuctl up",
    "tpuctl 1 -m package.train1": "tpuctl run -m package.train",
    "tpuctl 1 --stack bert --project my-project": "tpuctl status --stack bert --project my-project",
    "tpuctl 1 train.py -- --steps 1000": "tpuctl run train.py -- --steps 1000",
    "tpuctl ci 1 1": "tpuctl ci github SCRIPT",
    "tpuctl ci 1 --print": "tpuctl ci github --print",
    "tpuctl local env --shell bash|zsh|fish": "tpuctl local env --shell zsh",
    "gcloud secrets 1 1 --project=1 --data-file=-": "gcloud secrets create x --data-file=-",
}
KNOWN = [*table().errors, *table().statuses]


@cache
def commands() -> tuple[tuple[str, str], ...]:
    """The commands in texts of the code and of the table of errors, with their locations."""
    code = {(command, where) for where, command in commands_in_texts()}
    table_ = {
        (command, f"{error.name or error.summary} of the table")
        for error in KNOWN
        for command in COMMAND.findall(error.hint({}))
    }
    return tuple(sorted(code | table_))


def test_every_diagnostic_has_hint_or_exemption() -> None:
    all_sites = diagnostic_sites()
    assert len(all_sites) > 250, "the search no longer finds them"
    without = [site for site in all_sites if not site.has_hint]
    listed = [site for site in without if (site.path, site.summary) in WITHOUT]
    assert not [str(site) for site in without if site not in listed]
    assert {(site.path, site.summary) for site in listed} == {*WITHOUT}, "an exemption is unused"


def test_commands_in_hints_are_on_separate_lines() -> None:
    inline = re.compile(rf"\btpuctl ({'|'.join(COMMANDS)})\b(?! (?:again|itself))")
    texts = [(str(site), site.hint) for site in diagnostic_sites()]
    texts += [(error.summary, error.hint({})) for error in KNOWN]
    lines = [(where, line) for where, text in texts for line in text.split("\n")]
    assert not [
        (where, line) for where, line in lines if inline.search(line) and line[:4] != "    "
    ]


def test_hints_say_pass() -> None:
    """One verb for what is typed: "Pass another file", neither "specify" nor "provide" nor "name".

    Keys of the stack file are set.
    """
    other_verb = re.compile(r"(?i)\b(?:specify|provide|supply)\b|(?:^|\. |\n)Name (?!only|without)")
    texts = [(str(site), site.hint) for site in diagnostic_sites()]
    texts += [(error.summary, error.hint({})) for error in KNOWN]
    assert not [where for where, text in texts if other_verb.search(text)]
    assert sum("Pass " in text for _, text in texts) > 30


def test_placeholders_of_projects_are_one() -> None:
    placeholder = re.compile(r"\b(?:PROJECT_ID|PROJECT-ID|YOUR_PROJECT|MY_PROJECT)\b")
    assert not [where for command, where in commands() if placeholder.search(command)]


def test_tpuctl_commands_in_texts_parse() -> None:
    wrong = []
    for command, where in commands():
        if not command.startswith("tpuctl"):
            continue
        words = shlex.split(re.sub(r"\bN\b", "1", PUT_IN.get(command, command)))
        ends = [place for place, word in enumerate(words) if word in ("<", ">", "|")]
        try:
            parsed = parse(words[1 : min(ends, default=len(words))])
        except typer.TyperException as error:
            wrong.append(f"{where}: {command}: {error.format_message()}")
            continue
        takes_script = parsed.info_name in ("run", "rehearse") and AFTER_DASHES in parsed.meta
        if takes_script and not _has_program(parsed):
            wrong.append(f"{where}: {command}: runs nothing: write SCRIPT, which is filled in")
    assert not wrong
    assert {*PUT_IN} <= {command for command, _ in commands()}, "a hint is unused"


def _has_program(parsed: Any) -> bool:
    names = ("script", "module")
    return bool(parsed.meta[AFTER_DASHES]) or any(parsed.params.get(name) for name in names)


@cache
def gclouds() -> Any:
    """The tree of gcloud's commands and flags, from its completion table."""
    program = shutil.which("gcloud")
    if program is None:
        pytest.skip("gcloud is not installed")
    folders = [*Path(program).resolve().parents, Path("/usr/lib/google-cloud-sdk")]
    files = [folder / "data/cli/gcloud_completions.py" for folder in folders]
    file = next((path for path in files if path.exists()), None)
    if file is None:
        pytest.skip("this gcloud has no list of its commands")
    spec = spec_from_file_location("gcloud_completions", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    spec.loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module.STATIC_COMPLETION_CLI_TREE


@pytest.mark.soak
def test_gcloud_commands_in_texts_exist() -> None:
    wrong = []
    for command, where in commands():
        if not command.startswith("gcloud ") or command.split()[1] == "names":  # a sentence
            continue
        node, words = gclouds(), shlex.split(PUT_IN.get(command, command))[1:]
        flags = {*node["flags"]}
        while words and words[0] in node["commands"]:
            node = node["commands"][words.pop(0)]
            flags |= {*node["flags"]}
            switches = [flag for flag, values in node["flags"].items() if values == "bool"]
            flags |= {flag.replace("--", "--no-", 1) for flag in switches}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        if node["commands"] or not used <= flags:
            wrong.append(f"{where}: {command}: {used - flags or 'a group instead of a command'}")
    assert not wrong


def test_known_errors_are_complete() -> None:
    names = [error.name for error in table().errors]
    assert len({*names}) == len(names)
    for known_error in KNOWN:
        assert_whole(known_error)


def assert_whole(error: KnownError) -> None:
    name = error.name or error.summary
    assert error.summary and error.summary[0].isupper() and error.summary[-1] != ".", name
    assert error.cause.endswith("."), name
    assert error.hint_template, name
    assert COMMAND.search(error.hint({})) or "https://" in error.hint({}), name
    assert not re.search(r"[{}]|\[\[|\]\]", re.sub(r"\{\w+: \w+\}", "", error.hint({}))), name
    assert all(len(line) <= 80 for line in error.hint_template.split("\n") if line[:4] != "    "), (
        name
    )
    if error.name:
        assert error.kind in table().kinds, name
        assert error.match or error.lines, name
        assert error.source, name
        assert bool(error.scope) == bool(error.exception), name
        assert not (error.response or error.reasons) or error.exception, name
        assert not error.response or error.statuses, "generic text requires statuses"
        assert not error.weak or not error.fault, name
