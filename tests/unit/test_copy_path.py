"""The sides of a copy as they are typed."""

from __future__ import annotations

import pytest

from tpuctl.errors import Usage
from tpuctl.model.copy_path import Copying, Place, copying, place, worker_number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("data.txt", Place("data.txt")),
        ("0:data.txt", Place("data.txt", True, 0)),
        ("12:", Place("", True, 12)),
        ("worker-3:/tmp/x", Place("/tmp/x", True, 3)),
        ("worker3:x", Place("x", True, 3)),
        (":x", Place("x", True, None)),
        ("0:~/x", Place("x", True, 0)),
        ("0:~", Place("", True, 0)),
        ("0:a:b", Place("a:b", True, 0)),
        ("./0:x", Place("./0:x")),
        ("a/0:x", Place("a/0:x")),
        ("host:x", Place("host:x")),
        ("C:\\x", Place("C:\\x")),
        ("-1:x", Place("-1:x")),
    ],
)
def test_what_is_here_and_what_is_there(text: str, found: Place) -> None:
    assert place(text) == found


def test_both_ways() -> None:
    assert copying(["a", "b", "1:c"], all_workers=False) == Copying(("a", "b"), "c", True, 1)
    assert copying(["1:a", "1:b", "c"], all_workers=False) == Copying(("a", "b"), "c", False, 1)
    assert copying(["a", ":"], all_workers=True) == Copying(("a",), "", True, None)
    assert copying([":a", "b"], all_workers=True) == Copying(("a",), "b", False, None)


@pytest.mark.parametrize(
    ("paths", "all_workers", "says"),
    [
        (["0:a"], False, "two paths"),
        (["a", "b"], False, "neither side"),
        (["0:a", "1:b"], False, "both sides"),
        (["0:a", "b", "c"], False, "c"),
        (["0:a", "b", "1:c"], False, "0:a"),
        (["0:a", "1:b", "c"], False, "workers 0, 1"),
        ([":a", "b"], False, "no worker"),
        (["a", "0:b"], True, "all of them"),
        (["", "0:b"], False, "no letters"),
    ],
)
def test_what_is_not_clear_is_refused(paths: list[str], all_workers: bool, says: str) -> None:
    with pytest.raises(Usage) as refused:
        copying(paths, all_workers=all_workers)
    assert says in refused.value.diagnostics[0].detail


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("17", 17), ("worker-2", 2), ("worker2", 2), ("x", None), ("-1", None), ("", None)],
)
def test_names_of_workers(text: str, number: int | None) -> None:
    assert worker_number(text) == number
