"""With --quiet, commands print their result and errors, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.cli.main import run

# Beginnings of advice.
NOTES = ("Next:", "To ", "Start", "For example", "From:", "No ", "Nothing", "not shown")


@pytest.fixture(autouse=True)
def _local_cloud(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_CLOUD", "local")


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ("types --max-chips 4", "v5litepod-4"),
        ("zones --type v3-8", "europe-west4-a"),
        ("runtimes", "tpu-vm-tf-2.18.0"),
        ("prices v3-8", "$"),
        ("init --list", "bert-pretraining"),
        ("init empty", "tpuctl.yaml"),
        ("ci", "tpuctl ci github"),
        ("check fine.py", ""),
        ("check bad.py", "TPU"),
        ("local down", ""),
        ("local status", "running     no"),
    ],
)
def test_quiet_prints_the_result_only(
    arguments: str, result: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fine.py").write_text("print(1)\n", "utf-8")
    (tmp_path / "bad.py").write_text("import tensorflow.contrib\n", "utf-8")
    run(["--quiet", *arguments.split()])
    captured = capsys.readouterr()
    assert result in captured.out
    assert bool(captured.out) == bool(result)
    assert captured.err == ""
    assert [line for line in captured.out.splitlines() if line.startswith(NOTES)] == []


def test_types_lists_large_ones_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*arguments: str) -> set[str]:
        assert run(["types", *arguments]) == 0
        return {line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]}

    # v5litepod-256 has 256 chips, v4-1024 has 512 (docs.cloud.google.com/tpu/docs).
    assert "v5litepod-256" in listed()
    assert "v4-1024" not in listed()
    assert "v4-1024" in listed("--all") & listed("v4-1024") & listed("--max-chips", "512")
