"""How users name workers, with one slice and with several."""

from __future__ import annotations

import pytest

from tpuctl.errors import Usage
from tpuctl.model.workers.copy_path import parse_copy
from tpuctl.model.workers.worker_numbering import ONE_SLICE, WorkerNumbering

TWO_SLICES = WorkerNumbering(workers=8, slices=2)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("17", 17), ("worker-2", 2), ("worker2", 2), ("x", None), ("-1", None), ("", None)],
)
def test_worker_of_one_slice(text: str, number: int | None) -> None:
    assert ONE_SLICE.parse(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.0", 0),
        ("0.3", 3),
        ("1.0", 4),
        ("worker-1.3", 7),
        ("5", 5),
        ("1.", None),
        ("1.2.3", None),
    ],
)
def test_worker_of_two_slices(text: str, number: int | None) -> None:
    assert TWO_SLICES.parse(text) == number


def test_names_say_slice_only_if_there_are_several() -> None:
    assert [TWO_SLICES.name(worker) for worker in (0, 3, 4)] == ["0.0", "0.3", "1.0"]
    assert [TWO_SLICES.slice_of(worker) for worker in (0, 3, 4)] == [0, 0, 1]
    assert (ONE_SLICE.name(3), ONE_SLICE.slice_of(3)) == ("3", None)


@pytest.mark.parametrize(
    ("numbering", "text", "says"),
    [
        (TWO_SLICES, "2.0", "the stack has workers 0.0 to 1.3, not 2.0"),
        (TWO_SLICES, "0.4", "the stack has workers 0.0 to 1.3, not 0.4"),
        (WorkerNumbering(workers=4), "1.0", "1.0 is worker 0 of slice 1; the stack has one slice"),
    ],
)
def test_worker_that_does_not_exist(numbering: WorkerNumbering, text: str, says: str) -> None:
    with pytest.raises(Usage) as refused:
        numbering.parse(text)
    assert refused.value.diagnostics[0].detail == says


def test_copy_names_worker_of_slice() -> None:
    request = parse_copy(["1.2:log.txt", "."], all_workers=False, numbering=TWO_SLICES)
    assert request.worker == 6
    with pytest.raises(Usage) as refused:
        parse_copy(["1.2:log.txt", "3:log.txt", "."], all_workers=False, numbering=TWO_SLICES)
    assert refused.value.diagnostics[0].detail == "workers 0.3, 1.2"
