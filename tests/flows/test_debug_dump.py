"""`debug-dump`: what is in the archive after real failures, and that no secret is; `explain` after
a failed `up`."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.projects import Bench
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

pytestmark = pytest.mark.long

MakeStack = Callable[..., Tpuctl]
PERSON, ADDRESS = "ann@example.com", "203.0.113.77"
SECRETS = {
    "environment": "planted-in-the-environment",
    "stack": "planted-in-the-stack-file",
    "metadata": "planted-in-metadata",
    "log": "hf_PlantedInTheLogOfTheJob",
    "answer": "planted-in-an-answer",
    "line": "planted-on-the-line",
    "word": "planted, as a word; of its own",
}
WORDS = ("--password", SECRETS["word"])
EXTRA = f"""
job:
  env: {{WANDB_API_KEY: {SECRETS["stack"]}}}
  secrets: {{HF_TOKEN: env}}
"""
SCRIPT = f"""
import os, sys
print("secret:", os.environ["HF_TOKEN"], os.environ["WANDB_API_KEY"], "{SECRETS["log"]}")
print("from {PERSON} at {ADDRESS}")
raise SystemExit(3)
"""


@pytest.fixture
def bench(make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A stack with a history of commands of its own."""
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_TOKEN", SECRETS["environment"])
    stack = make_stack(extra=EXTRA)
    text = stack.stack_file.read_text("utf-8")
    metadata = f"metadata: {{db-password: {SECRETS['metadata']}}}, zones"
    stack.stack_file.write_text(text.replace("zones", metadata, 1), "utf-8")
    (stack.stack_file.parent / "train.py").write_text(SCRIPT, "utf-8")
    return Bench(stack, [])


def texts(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_archive_after_failures_has_causes_and_no_secrets(
    bench: Bench, local_cloud: LocalCloud
) -> None:
    text = f"Zone is full for {PERSON} at {ADDRESS}, password={SECRETS['answer']}"
    remote_control.add_fault(
        local_cloud, "error", method="CreateNode", code="ABORTED", text=text, times=1
    )
    assert bench.type("up", "--yes")[0] != 0
    assert bench.type("up", "--yes")[0] == 0
    code, out, _ = bench.type("run", "train.py", "--", f"--api-key={SECRETS['line']}", *WORDS)
    assert code == 3
    assert SECRETS["environment"] in out, "the planted values are really there"

    code, out, err = bench.type("debug-dump")
    assert code == 2, "nothing is written without consent"
    assert "commands/01-up.jsonl" in out and "--yes" in err
    assert not list(bench.folder.glob("*.zip"))

    code, out, err = bench.type("debug-dump", "--output", "report.zip", "--yes")
    assert code == 0, err
    file = bench.folder / "report.zip"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    files = texts(file)
    assert "planted, as" not in "".join(files.values())
    assert {*json.loads(files["contents.json"])["files"]} == {*files} - {"contents.json"}
    assert all(name in out for name in files if name != "contents.json"), "the list was shown"
    for name, content in files.items():
        leaks = [value for value in (*SECRETS.values(), PERSON, ADDRESS) if value in content]
        assert not leaks, f"{name} has {leaks}"
        assert "local-project" not in content, name
    assert local_cloud.token not in "".join(files.values())

    assert "Zone is full for account-" in files["commands/01-up.jsonl"]
    assert '"call": "TpuClient.create_node"' in files["commands/01-up.jsonl"]
    person = next(word for word in files["job/worker-0.log"].split() if word.startswith("account-"))
    assert f"Zone is full for {person} " in files["commands/01-up.jsonl"], "told apart everywhere"
    assert json.loads(files["job/worker-0.json"])["exit_code"] == 3
    assert "job/worker-0-supervisor.log" in files
    assert json.loads(files["plan.json"])["stack"] == bench.stack.stack.name
    assert {"credentials", "billing"} <= {
        each["check"] for each in json.loads(files["doctor.json"])
    }
    assert files["tpuctl.yaml"].startswith(f"stack: {bench.stack.stack.name}\n")
    assert "HF_TOKEN: env" in files["tpuctl.yaml"]
    versions = json.loads(files["versions.json"])
    assert {"python", "system", "ssh", "packages", "environment"} <= {*versions}
    assert "google-cloud-tpu" in versions["packages"]

    code, _, err = bench.type("debug-dump", "--output", "report.zip", "--yes")
    assert code == 1 and "is not overwritten" in err
    assert texts(file) == files

    # After `down`, what the bucket has is still there, and what is gone is no error.
    assert bench.type("down", "--yes")[0] == 0
    answer = bench.answer("debug-dump", "--yes")
    assert answer["status"] == "ok"
    assert "job's supervisors" in answer["data"]["omitted"]
    assert "job/worker-0.log" in texts(bench.folder / answer["data"]["file"])
    assert answer["data"]["replaced"]["secret"] >= 3
    assert bench.type("down", "--yes", "--delete-bucket")[0] == 0
    answer = bench.answer("debug-dump", "--yes", "--output", "gone.zip")
    assert answer["status"] == "ok"
    assert "No jobs" in answer["data"]["omitted"]["job"]


def test_dump_is_written_only_with_consent(bench: Bench) -> None:
    for reply, code, count in (("n", 130, 0), ("y", 0, 1)):
        with Terminal(bench.folder, "debug-dump") as terminal:
            terminal.wait_for("versions.json")
            terminal.wait_for("Write tpuctl-debug-")
            terminal.type(f"{reply}\r")
            assert terminal.end() == code
        assert len(list(bench.folder.glob("tpuctl-debug-*.zip"))) == count


def test_dump_without_cloud_and_stack_file(bench: Bench, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = bench.type(
        "debug-dump", "-y", "-o", "x.zip", folder=empty, TPUCTL_LOCAL_HOME=str(tmp_path / "none")
    )
    assert code == 0, err
    assert "the local cloud is not running" in out
    assert not (tmp_path / "none").exists(), "nothing is started for it"
    contents = json.loads(texts(empty / "x.zip")["contents.json"])
    assert {"tpuctl.yaml", "plan.json", "doctor.json", "job"} <= {*contents["omitted"]}

    code, _, err = bench.type("debug-dump", "-y", "-o", "absent/x.zip", folder=empty)
    assert code == 1 and "No such file or directory" in err


def test_dump_of_invalid_stack_file_says_why(bench: Bench) -> None:
    bench.stack.stack_file.write_text("stack: bert\nproject: {id: local-project}\ntpus: {}\n")
    answer = bench.answer("debug-dump", "--yes")
    files = texts(bench.folder / answer["data"]["file"])
    assert files["tpuctl.yaml"] == "stack: bert\nproject: {id: project-1}\ntpus: {}\n"
    assert "tpus" in answer["data"]["omitted"]["plan.json"]


def test_explain_knows_why_up_failed(bench: Bench, local_cloud: LocalCloud) -> None:
    remote_control.add_fault(local_cloud, "stockout", zone="us-central1-b", times=1)
    assert bench.type("up", "--yes")[0] == 75
    bench.type("status")
    code, out, err = bench.type("explain")
    assert code == 0, err
    for part in ("tpuctl up --yes", "exit code 75", "No capacity", "tpuctl jobs\n"):
        assert part in out
    data = bench.answer("explain")["data"]
    assert (data["exit_code"], data["meaning"]["name"]) == (75, "no-capacity")
    assert data["errors"][0]["summary"] == "No capacity"

    assert bench.type("up", "--yes")[0] == 0
    code, out, _ = bench.type("run", "train.py")
    assert code == 3
    assert bench.answer("explain")["data"]["failure"]["kind"] == "failure"
    assert bench.type("down", "--yes", "--delete-bucket")[0] == 0
