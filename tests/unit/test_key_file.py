"""What GOOGLE_APPLICATION_CREDENTIALS may wrongly hold: reported without the content of any key."""

from __future__ import annotations

import base64
import json
import os
import zipfile
from pathlib import Path

import pytest

from tpuctl.cli.main import run
from tpuctl.cloud.key_file import require_key_file
from tpuctl.errors import Denied
from tpuctl.files import state_home

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
PRIVATE = "MIISECRETSECRET"
KEY = json.dumps(
    {
        "type": "service_account",
        "private_key": f"-----BEGIN PRIVATE KEY-----\n{PRIVATE}\n-----END PRIVATE KEY-----\n",
        "client_email": "ci@x.iam.gserviceaccount.com",
    }
)
ENCODED = base64.b64encode(KEY.encode()).decode()
STACK = "stack: b\nproject: {id: my-project}\ntpu: {type: v2-8}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TPUCTL_LOCAL_ENV", raising=False)
    monkeypatch.delenv("TPUCTL_CLOUD", raising=False)
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "tpuctl.yaml").write_text(STACK, "utf-8")
    return tmp_path


VALUES = {
    "JSON": KEY,
    "indented": json.dumps(json.loads(KEY), indent=4),
    "base64": ENCODED,
    "base64 in lines": "\n".join(ENCODED[at : at + 64] for at in range(0, len(ENCODED), 64)),
    "PEM": f"-----BEGIN PRIVATE KEY-----\n{PRIVATE}\n-----END PRIVATE KEY-----",
    "quoted": json.dumps(KEY),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("words", [["status"], ["--json", "status"], ["--verbose", "doctor"]])
def test_key_in_the_variable_is_not_shown(
    words: list[str],
    value: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    code = run(["--cloud", "google", *words])
    output = " ".join("".join(capsys.readouterr()).split())  # lines are wrapped
    assert code == 77
    assert "the variable holds a key, not a path" in output and VARIABLE in output
    records = [path.read_text("utf-8") for path in state_home().rglob("*.jsonl")]
    assert records
    for text in (output, *records):
        assert not [part for part in (PRIVATE, ENCODED[:40], "ci@x") if part in text]


def test_archive_does_not_hold_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, ENCODED)
    assert run(["--cloud", "google", "debug-dump", "--yes", "--output", "x.zip"]) == 0
    with zipfile.ZipFile(folder / "x.zip") as archive:
        texts = [archive.read(name).decode() for name in archive.namelist()]
    assert any("holds a key, not a path" in text for text in texts)
    assert not [text for text in texts if ENCODED[:40] in text or PRIVATE in text]


FILES = {
    "folder": (None, "is a folder"),
    "list": (b"[]", "not an object"),
    "text": (json.dumps(KEY).encode(), "not an object"),
    "nested": (b"[" * 100_000, "not JSON"),
    "empty": (b" \n", "is empty"),
    "binary": (bytes(range(256)), "not UTF-8"),
    "UTF-16": (KEY.encode("utf-16"), "not UTF-8"),
    "PEM": (VALUES["PEM"].encode(), "not JSON"),
    "client": (b'{"installed": {"client_secret": "GOCSPX"}}', "OAuth client"),
    "no type": (b'{"private_key": "x"}', "no known type"),
    "types": (json.dumps({"type": "authorized_user", "refresh_token": [PRIVATE]}), ""),
    "fields": (json.dumps({"type": "service_account", "private_key": {"k": PRIVATE}}), ""),
    "token": (
        b'{"type": "external_account", "credential_source": {"file": "/"}}',
        "credential_source.file",
    ),
}


@pytest.mark.parametrize(("content", "problem"), FILES.values(), ids=FILES)
def test_file_that_is_no_key_is_named_without_its_content(
    content: bytes | str | None,
    problem: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = folder / "key.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setenv(VARIABLE, str(path))
    assert run(["--cloud", "google", "status"]) == 77
    output = capsys.readouterr().err
    assert "key.json" in output and problem in output
    assert not [part for part in (PRIVATE, "BEGIN", r"\x", "GOCSPX") if part in output]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/no/such/key.json", "/no/such/key.json does not exist"),
        ("~/key.json", "~/key.json does not exist; shells"),
        ("exists.json ", "a space or a line break"),
        (" ", "does not hold the path of a file"),
        ("x" * 5000, "does not hold the path of a file"),
        ("ya29.a0AfB_byC1234567890", "does not hold the path of a file"),
        ("a/" + "b" * 100 + ".json", "does not hold the path of a file"),
    ],
)
def test_value_is_shown_only_if_it_is_a_path(value: str, expected: str, folder: Path) -> None:
    (folder / "exists.json").touch()
    with pytest.raises(Denied) as caught:
        require_key_file({VARIABLE: value})
    (problem,) = caught.value.diagnostics
    assert expected in problem.detail
    assert len(problem.text) < 400


def test_file_of_gcloud_has_advice_for_it(tmp_path: Path) -> None:
    (tmp_path / "application_default_credentials.json").write_text("{", "utf-8")
    with pytest.raises(Denied) as caught:
        require_key_file({"CLOUDSDK_CONFIG": str(tmp_path)})
    assert VARIABLE not in caught.value.diagnostics[0].text
    assert "gcloud auth application-default login" in caught.value.diagnostics[0].hint


def test_pipe_is_left_to_google_auth(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    require_key_file({VARIABLE: str(tmp_path / "pipe")})
    require_key_file({"CLOUDSDK_CONFIG": "/none"})
