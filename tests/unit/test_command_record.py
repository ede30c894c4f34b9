"""The record of the last commands: private, bounded, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpuctl.errors import Diagnostic
from tpuctl.model.troubleshooting import command_record
from tpuctl.model.troubleshooting.command_record import (
    Call,
    CommandRecorder,
    last_failure,
    read_records,
)

STACK = ("google", "my-project", "bert")
PROBLEM = Diagnostic("No capacity", "in us-east1-b")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path))
    return tmp_path / "state" / "commands"


def call(answer: object = "", error: BaseException | None = None, **fields: object) -> Call:
    return Call("node/bert", "TpuClient.get_node", (), fields, answer, error, 0.1)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_calls_are_written_as_they_happen_to_a_private_file(folder: Path) -> None:
    recorder = CommandRecorder(["up", "--yes"])
    assert not folder.exists(), "a command without calls leaves nothing"
    recorder.call(call("READY", zone="us-east1-b", retry=None))
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    recorder.call(call(error=ValueError("no such node")))
    head, first, second = lines(file)
    assert head["arguments"] == ["up", "--yes"]
    assert (first["request"], first["answer"]) == ("{'zone': 'us-east1-b'}", "'READY'")
    assert second["error"] == "ValueError: no such node"
    (record,) = read_records()
    assert record.exit_code is None, "it was killed, or still runs"
    recorder.end("up", 130)
    recorder.call(call("late"))
    (record,) = read_records()
    assert record.exit_code == 130, "calls that outlive the command are left out"


def test_secrets_are_never_written(folder: Path) -> None:
    environment = {"MY_TOKEN": "of-the-environment"}
    recorder = CommandRecorder(
        ["run", "x.py", "--", "--api-key=on-the-line", "--password", "as a word; of its own"],
        environment=environment,
    )
    recorder.call(call(arguments=["--x", "as a word; of its own"]))
    recorder.call(call({"password": "in-an-answer"}, key="of-the-environment"))
    recorder.call(call(b"in-an-object", error=ValueError("https://ann:in-a-url@host")))
    recorder.end(
        "run", 70, diagnostics=[Diagnostic("x", "of-the-environment")], traceback="hf_" + "x" * 30
    )
    (file,) = folder.iterdir()
    text = file.read_text("utf-8")
    words = ("of-the-environment", "on-the-line", "in-an-answer", "in-an-object", "in-a-url", "hf_")
    words += ("as a word", "of its own")
    assert not [word for word in words if word in text]


def test_long_commands_keep_the_beginning_and_the_last_calls(folder: Path) -> None:
    recorder = CommandRecorder(["status", "--watch"])
    for number in range(200):
        recorder.call(call("x" * 100_000, number=number))
    recorder.end("status", 0)
    (file,) = folder.iterdir()
    assert file.stat().st_size <= command_record.MAX_BYTES
    head, *calls, end = lines(file)
    assert (head["arguments"], end["command"]) == (["status", "--watch"], "status")
    assert calls[-1]["request"] == "{'number': 199}"
    assert len(calls) > 10


def test_only_the_last_commands_are_kept(folder: Path) -> None:
    for number in range(command_record.MAX_COMMANDS + 5):
        CommandRecorder([str(number)]).end("status", 0)
    newest = [record.arguments[0] for record in read_records()]
    assert len(newest) == command_record.MAX_COMMANDS
    assert newest[0] == str(command_record.MAX_COMMANDS + 4)


def test_folder_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    recorder = CommandRecorder(["up"])
    recorder.call(call())
    recorder.end("up", 0)
    assert not [*read_records()]


HEAD = b'{"started": "2026-11-27T08:00:00+00:00", "arguments": ["up"]}\n'


@pytest.mark.parametrize(
    "data",
    [
        b"",  # as a full disk leaves it
        b"{half a li",
        b"\xff\x00",
        b"null",
        b"[" * 100_000,
        HEAD[:-1].replace(b'["up"]', b"[1]"),
        HEAD + b'{"ended": "", "command": "up", "exit_code": 1e999}',
        HEAD + b'{"ended": "", "command": "up", "exit_code": 1, "diagnostics": [{"detail": 5}]}',
        HEAD + b'{"ended": "", "command": "up", "exit_code": 1, "stacks": [["a"]]}',
        HEAD + b'{"ended": "", "command": ["up"], "exit_code": 1}',
        b'{"started": "9999-12-31T23:59:59-14:00", "arguments": ["up"]}',
    ],
    ids=lambda data: ascii(data[:90]),
)
def test_unreadable_records_are_left_out(folder: Path, data: bytes) -> None:
    CommandRecorder(["up"]).end("up", 75, diagnostics=[Diagnostic("x")], stacks=[("c", "p", "s")])
    (folder / "20990101T000000-1.jsonl").write_bytes(data)
    assert [record.command for record in read_records()] == ["up"]
    assert last_failure("c", "p", "s") is not None


def test_record_that_was_emptied_meanwhile_is_never_fatal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_record, "MAX_BYTES", 200)
    recorder = CommandRecorder(["up"])
    recorder.call(call())
    for file in folder.iterdir():
        file.write_bytes(b"")
    recorder.call(call())
    recorder.end("up", 0)


@pytest.mark.parametrize(
    ("ended", "is_explained"),
    [
        (("up", 75, ()), True),
        (("run", 75, ()), True),
        (("run", 3, ("20261127-080000-lark",)), False),  # the job's failure
        (("up", 0, ()), False),
        (("up", 2, ()), False),  # was not confirmed
        (("up", 130, ()), False),
        (("plan", 77, ()), False),
    ],
)
def test_last_failure(ended: tuple[str, int, tuple[str, ...]], is_explained: bool) -> None:
    command, code, jobs = ended
    recorder = CommandRecorder([command])
    recorder.end(command, code, stacks=[STACK], jobs=jobs, diagnostics=[PROBLEM] if code else [])
    CommandRecorder(["status"]).end("status", 0, stacks=[STACK])
    failure = last_failure(*STACK)
    assert (failure is not None) is is_explained
    assert last_failure("local", "my-project", "bert") is None, "another stack"


def test_success_ends_an_earlier_failure() -> None:
    CommandRecorder(["up"]).end("up", 75, stacks=[STACK], diagnostics=[PROBLEM])
    CommandRecorder(["up"]).end("up", 0, stacks=[STACK])
    assert last_failure(*STACK) is None
