"""The output of `tpuctl check`, and what `--fix` and `run` do with findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpuctl.api import Tpuctl
from tpuctl.cli.main import run
from tpuctl.errors import Refused
from tpuctl.model.events import Event, WarningIssued

STACK = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8}\n"
NODE = "stack: bert\nproject: {id: my-project}\ntpu: {type: v3-8, kind: node, runtime: 2.12.0}\n"
GOOD = "print('nothing here is for a TPU')\n"
BROKEN = "x = 1\nif x\n    pass\n"
COSTLY = """import tensorflow as tf

data = tf.data.Dataset.range(100)
data = data.batch(8)
"""
RISKY = """import tensorflow as tf


@tf.function(jit_compile=True, reduce_retracing=True)
def step(x):
    return x * 2
"""
FIXED = RISKY.replace("jit_compile=True, ", "")
LINE_END = "\n"
FAILS = """import tensorflow as tf


@tf.function(autograph=False)
def step(x):
    if tf.reduce_sum(x) > 10.0:
        return x
    return -x
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    names = ("TPUCTL_CLOUD", "TPUCTL_JSON", "TPUCTL_STACK_FILE", "TPUCTL_YES", "GITHUB_WORKSPACE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, "utf-8")


def envelope(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = run([*arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    return answer


# Output -----------------------------------------------------------------------------------


def test_json_envelope_has_findings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=FAILS)
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    answer = envelope(capsys, "check", "train.py")
    assert (answer["status"], answer["exit_code"]) == ("failed", 1)
    (finding,) = answer["data"]["findings"]
    assert (finding["code"], finding["severity"], finding["line"]) == ("TPU001", "error", 6)
    assert Path(finding["file"]) == here / "train.py"
    assert answer["data"]["type"] == "v3-8"
    (diagnostic,) = answer["diagnostics"]
    assert diagnostic["summary"].startswith("TPU001 ")
    assert diagnostic["where"].startswith("train.py:6:")


def test_select_and_ignore_filter_rules(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=FAILS + COSTLY)
    codes = {
        (): {"TPU001", "TPU201"},
        ("--select", "TPU2"): {"TPU201"},
        ("--select", "tpu001, TPU201"): {"TPU001", "TPU201"},
        ("--select", "TPU001", "--select", "TPU2"): {"TPU001", "TPU201"},
        ("--ignore", "TPU001"): {"TPU201"},
        ("--select", "TPU", "--ignore", "TPU2"): {"TPU001"},
    }
    for options, expected in codes.items():
        answer = envelope(capsys, "check", "train.py", *options)
        assert {finding["code"] for finding in answer["data"]["findings"]} == expected, options


def test_unreadable_file_is_reported_despite_select(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, train=BROKEN)
    assert run(["check", "train.py", "--select", "TPU1"]) == 1
    assert "TPU000" in capsys.readouterr().out
    assert run(["check", "train.py", "--ignore", "TPU000"]) == 0


@pytest.mark.parametrize("format", ["github", "sarif"])
def test_stdout_has_only_the_selected_format(
    here: Path, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    write(here, train=BROKEN)
    assert run(["check", "train.py", "--format", format]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    if format == "github":
        assert captured.out.startswith("::error file=train.py,line=2,col=1,title=TPU000")
    else:
        (run_,) = json.loads(captured.out)["runs"]
        assert [result["ruleId"] for result in run_["results"]] == ["TPU000"]


def test_unused_suppression_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train="x = 1  # tpuctl: ignore[TPU999]\n")
    assert run(["check", "train.py"]) == 0
    assert "train.py:1 note  unknown rule TPU999" in capsys.readouterr().out


def test_explain_prints_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--explain", "tpu201"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("TPU201 ")
    assert "# tpuctl: ignore[TPU201]" in out
    assert run(["check", "--explain", "TPU2"]) == 0
    assert [line[:6] for line in capsys.readouterr().out.splitlines()] == [
        f"TPU20{number}" for number in (1, 2, 3, 4)
    ]


# --fix --------------------------------------------------------------------------------------


def test_fix_requires_confirmation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=RISKY)
    assert run(["check", "train.py"]) == 0
    assert "1 can be fixed:\n    tpuctl check train.py --fix" in capsys.readouterr().out
    assert run(["check", "train.py", "--fix"]) == 2
    captured = capsys.readouterr()
    assert "+@tf.function(reduce_retracing=True)" in captured.err
    assert "--yes" in captured.err
    assert (here / "train.py").read_text("utf-8") == RISKY


def test_fix_rewrites_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=RISKY)
    assert run(["check", "train.py", "--fix", "--yes"]) == 0
    captured = capsys.readouterr()
    assert "Changed train.py: TPU401" in captured.err
    assert "Nothing found" in captured.out
    assert (here / "train.py").read_text("utf-8") == FIXED
    assert run(["check", "train.py", "--fix"]) == 0, "nothing requires confirmation"


def test_fix_applies_selected_rules_only(here: Path) -> None:
    write(here, train=RISKY)
    assert run(["check", "train.py", "--fix", "--yes", "--ignore", "TPU4"]) == 0
    assert (here / "train.py").read_text("utf-8") == RISKY


# Before a job -------------------------------------------------------------------------------


def test_run_rejects_script_with_errors(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train=FAILS + FAILS.replace("step", "other"))
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    assert run(["run", "train.py"]) == 65
    err = capsys.readouterr().err
    assert "train.py:6:" in err
    assert f"train.py:{6 + FAILS.count(LINE_END)}:" in err, "all errors are reported together"
    assert "--no-check" in err
    assert "# tpuctl: ignore[TPU001]" in err


def test_run_summarizes_costs(here: Path) -> None:
    write(here, train=COSTLY)
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    seen: list[Event] = []
    stack = Tpuctl("tpuctl.yaml", emit=seen.append)
    assert stack.submission("train.py").stack == "bert"
    (event,) = seen
    assert isinstance(event, WarningIssued)
    assert event.diagnostic.detail == "1 cost"
    assert "    tpuctl check train.py" in event.diagnostic.hint
    assert [finding.code for finding in stack.check("train.py").findings] == ["TPU201"]


def test_advice_comes_once_for_each_version_of_script(here: Path) -> None:
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    for script, count in ((COSTLY, 1), (COSTLY, 0), (f"{COSTLY}\n", 1)):
        write(here, train=script)
        seen: list[Event] = []
        Tpuctl("tpuctl.yaml", emit=seen.append).submission("train.py")
        assert len(seen) == count


def test_no_check_skips_check(here: Path) -> None:
    write(here, train=FAILS)
    (here / "tpuctl.yaml").write_text(STACK, "utf-8")
    seen: list[Event] = []
    stack = Tpuctl("tpuctl.yaml", emit=seen.append)
    with pytest.raises(Refused):
        stack.submission("train.py")
    stack.submission("train.py", check=False)
    assert seen == []


def test_check_does_not_run_script(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, train="import parts\nopen('made', 'w')\n", parts="open('made too', 'w')\n")
    assert run(["check", "train.py"]) == 0
    assert sorted(path.name for path in here.iterdir()) == ["parts.py", "train.py"]
