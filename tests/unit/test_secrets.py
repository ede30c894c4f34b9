"""The sources of secrets, and that their values are stored nowhere else."""

from __future__ import annotations

import importlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import google_crc32c
import pytest

from tests.support.machine_folder import machine_folder
from tests.support.stacks import stack_from
from tpuctl.errors import InvalidStack, Usage
from tpuctl.model.stack.secret_sources import Secrets, parse_option
from tpuctl.model.stack.stack import load_stack

VAULT = machine_folder() / "secret_fetch.py"
STACK = "stack: s\nproject: {id: my-project}\ntpu: {type: v2-8}\n"
TOKEN = "hf_FTzXbQVUmvnAKFxrBiW"  # resembles a real one


def of(text: str) -> Secrets:
    return Secrets.of({"HF_TOKEN": text}, "my-project", environment={"HF_TOKEN": "1", "B": "2"})


@pytest.mark.parametrize(
    ("text", "values", "references", "recorded"),
    [
        ("env", {"HF_TOKEN": "1"}, {}, "env:HF_TOKEN"),
        ("env:B", {"HF_TOKEN": "2"}, {}, "env:B"),
        ("secret:hf", {}, "projects/my-project/secrets/hf/versions/latest", None),
        ("secret:hf_2@7", {}, "projects/my-project/secrets/hf_2/versions/7", None),
        ("projects/p-1/secrets/hf", {}, "projects/p-1/secrets/hf/versions/latest", None),
        ("projects/12/secrets/h/versions/3", {}, "projects/12/secrets/h/versions/3", None),
        ("projects/a.com:p/secrets/h", {}, "projects/a.com:p/secrets/h/versions/latest", None),
    ],
)
def test_source_formats(
    tmp_path: Path,
    text: str,
    values: dict[str, str],
    references: str | dict[str, str],
    recorded: str | None,
) -> None:
    secrets = of(text)
    expected = {"HF_TOKEN": references} if references else {}
    assert (secrets.values, secrets.references) == (values, expected)
    assert secrets.recorded == {"HF_TOKEN": recorded or references}
    assert of(secrets.recorded["HF_TOKEN"]) == secrets, "the same in another attempt"
    assert (
        stack_from(tmp_path, f"{STACK}job: {{secrets: {{HF_TOKEN: '{text}'}}}}\n").secrets
        == secrets.sources
    )
    assert parse_option(f"HF_TOKEN={text}") == ("HF_TOKEN", text)


def test_values_are_in_no_repr_and_unset_variables_reported_together() -> None:
    secrets = Secrets.of({"A": "env"}, "p", environment={"A": TOKEN})
    assert TOKEN not in repr(secrets)
    assert secrets.values == {"A": TOKEN}
    sources = {"A": "env", "C": "env:D", "E": "env", "S": "secret:s"}
    with pytest.raises(Usage) as caught:
        Secrets.of(sources, "p", environment={"E": "1", "D": ""})
    assert "A and D are not set" in str(caught.value)


@pytest.mark.parametrize("value", [TOKEN, "", "secret:", "projects/p", "env:no-name", "a\nb"])
def test_secret_value_on_command_line_is_rejected_and_not_echoed(value: str) -> None:
    with pytest.raises(Usage) as caught:
        parse_option(f"HF_TOKEN={value}")
    assert "HF_TOKEN" in str(caught.value)
    assert TOKEN not in repr(caught.value.diagnostics)
    with pytest.raises(Usage) as caught:
        parse_option("hf-token")
    assert "hf-token" not in str(caught.value)


@pytest.mark.parametrize(
    "secrets",
    [
        f"{{HF_TOKEN: {TOKEN}}}",
        f"{{HF_TOKEN: [{TOKEN}]}}",
        f"{{HF_TOKEN: {{value: {TOKEN}}}}}",
        f"[{TOKEN}]",
        TOKEN,
    ],
)
def test_secret_value_in_stack_file_is_rejected_and_not_echoed(
    tmp_path: Path, secrets: str
) -> None:
    path = tmp_path / "tpuctl.yaml"
    path.write_text(f"{STACK}job:\n  secrets: {secrets}\n", "utf-8")
    with pytest.raises(InvalidStack) as caught:
        load_stack(path)
    [diagnostic] = caught.value.diagnostics
    assert (diagnostic.summary, diagnostic.where) == ("Invalid secret source", f"{path}:5")
    assert TOKEN not in repr(diagnostic)
    assert "secrets: {HF_TOKEN: env}" in diagnostic.hint


def test_variable_in_env_and_secrets_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidStack, match="A is in both"):
        stack_from(tmp_path, f"{STACK}job: {{env: {{A: x}}, secrets: {{A: env}}}}\n")


def test_secrets_file_on_worker_is_private(tmp_path: Path) -> None:
    came = {"values": {"A": TOKEN, "B": "줄\n"}, "references": {}, "retry_seconds": 0}
    (tmp_path / "secrets.json").write_text(json.dumps(came))
    command = [sys.executable, "-S", "-I", str(VAULT), str(tmp_path)]
    before = os.umask(0)  # as a machine may have
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        os.umask(before)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    opened = tmp_path / "secret_values.json"
    assert json.loads(opened.read_text()) == came["values"]
    assert stat.S_IMODE(opened.stat().st_mode) == 0o600
    (tmp_path / "secrets.json").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "secrets were already deleted from this machine" in done.stdout


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256)) * 3, "안녕".encode()])
def test_checksum_matches_google(data: bytes) -> None:
    vault = importlib.import_module("tpuctl.jobs.shipped.downloads.secret_fetch")
    assert vault.crc32c(data) == google_crc32c.value(data)
