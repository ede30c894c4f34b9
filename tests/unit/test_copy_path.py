"""Source and target paths of `cp`, as typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.errors import Usage
from tpuctl.model.workers.copy_path import CopyPath, CopyRequest, parse_copy, parse_path
from tpuctl.model.workers.worker_numbering import WorkerNumbering

BERT = WorkerNumbering(4, stack="bert")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.txt", CopyPath("data.txt")),
        ("0:data.txt", CopyPath("data.txt", True, 0)),
        ("12:", CopyPath("", True, 12)),
        ("worker-3:/tmp/x", CopyPath("/tmp/x", True, 3)),
        ("worker3:x", CopyPath("x", True, 3)),
        (":x", CopyPath("x", True, None)),
        ("0:~/x", CopyPath("x", True, 0)),
        ("0:~", CopyPath("", True, 0)),
        ("0:a:b", CopyPath("a:b", True, 0)),
        ("./0:x", CopyPath("./0:x")),
        ("a/0:x", CopyPath("a/0:x")),
        ("host:x", CopyPath("host:x")),
        ("C:\\x", CopyPath("C:\\x")),
        ("-1:x", CopyPath("-1:x")),
    ],
)
def test_parse_path(text: str, expected: CopyPath) -> None:
    assert parse_path(text) == expected


def test_upload_and_download() -> None:
    assert parse_copy(["a", "b", "1:c"], all_workers=False) == CopyRequest(("a", "b"), "c", True, 1)
    assert parse_copy(["1:a", "1:b", "c"], all_workers=False) == CopyRequest(
        ("a", "b"), "c", False, 1
    )
    assert parse_copy(["a", ":"], all_workers=True) == CopyRequest(("a",), "", True, None)
    assert parse_copy([":a", "b"], all_workers=True) == CopyRequest(("a",), "b", False, None)


@pytest.mark.parametrize(
    ("paths", "all_workers", "says"),
    [
        (["0:a"], False, "a source and a target"),
        (["a", "b"], False, "both local"),
        (["0:a", "1:b"], False, "both on workers"),
        (["0:a", "b", "c"], False, "c"),
        (["0:a", "b", "1:c"], False, "0:a"),
        (["0:a", "1:b", "c"], False, "workers 0, 1"),
        ([":a", "b"], False, ":a is a path on all workers, and requires --all-workers"),
        (["a", "0:b", "1:c", ":d"], True, "0:b"),
        (["host:x", "0:"], False, "host:x: host is no worker of this stack"),
        (["0:x", "host:"], False, "host:: host is no worker of this stack"),
        (["other-0:x", "."], False, "they are numbered from 0, or bert-0"),
        (["bert-controller:x", "."], False, "bert-controller is the controller"),
        (["a", "0:b"], True, "selects all"),
        (["", "0:b"], False, "is empty"),
    ],
)
def test_ambiguous_arguments_are_rejected(paths: list[str], all_workers: bool, says: str) -> None:
    with pytest.raises(Usage) as refused:
        parse_copy(paths, all_workers=all_workers, numbering=BERT)
    assert says in refused.value.diagnostics[0].detail


def test_hosts_of_ssh_config_are_workers() -> None:
    slices = WorkerNumbering(workers=8, slices=2, stack="bert")
    assert parse_path("bert-1.2:x", slices) == CopyPath("x", True, 6)
    assert parse_path("bert-2:", BERT) == CopyPath("", True, 2)
    assert parse_path("bert-:x", BERT) == CopyPath("bert-:x")
    assert parse_path("bert-2:", WorkerNumbering(4)) == CopyPath("bert-2:"), "of another stack"


def test_local_file_with_colon_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "12:30").write_text("")
    (tmp_path / "at:noon").write_text("")
    monkeypatch.chdir(tmp_path)
    assert parse_copy(["at:noon", "0:"], all_workers=False).sources == ("at:noon",)
    assert parse_copy(["./12:30", "0:"], all_workers=False).sources == ("./12:30",)


@pytest.mark.parametrize(
    ("paths", "commands"),
    [
        ([":a b", "c"], ["cp -r '0:a b' c", "cp -r --all-workers ':a b' c"]),
        (["a", "b", ":"], ["cp -r a b 0:", "cp -r --all-workers a b :"]),
    ],
    ids=["download", "upload"],
)
def test_path_without_worker_names_both_commands(paths: list[str], commands: list[str]) -> None:
    with pytest.raises(Usage) as refused:
        parse_copy(paths, all_workers=False, recursive=True, numbering=BERT)
    lines = refused.value.diagnostics[0].hint.splitlines()
    assert lines[1:] == [f"    tpuctl {command}" for command in commands]
