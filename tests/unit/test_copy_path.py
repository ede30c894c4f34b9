"""Source and target paths of `cp`, as typed."""

from __future__ import annotations

import pytest

from tpuctl.errors import Usage
from tpuctl.model.copy_path import CopyPath, CopyRequest, parse_copy, parse_path


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
        ([":a", "b"], False, "no worker"),
        (["a", "0:b"], True, "selects all"),
        (["", "0:b"], False, "is empty"),
    ],
)
def test_ambiguous_arguments_are_rejected(paths: list[str], all_workers: bool, says: str) -> None:
    with pytest.raises(Usage) as refused:
        parse_copy(paths, all_workers=all_workers)
    assert says in refused.value.diagnostics[0].detail
