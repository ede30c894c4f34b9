"""The batch of a captured step: of the script, of `--batch`, or unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tpuctl.errors import Usage
from tpuctl.preflight.compile.compilation import CompileRequest, _Compilation
from tpuctl.preflight.compile.compile_report import CompileReport

SIZES = {"arguments": 1, "results": 1, "shared": 0, "temporary": 1, "code": 1, "seconds": 1.0}
LOWERED = {
    "kind": "compiled",
    "limit": "Used 2G of 1G hbm",
    "has_bfloat16": False,
    "variable_bytes": 8,
    "is_donated": True,
    **SIZES,
}
CAPTURED = {
    "kind": "captured",
    "function": "train_steps",
    "where": None,
    "inputs": [["float32", [8, 32, 16]]],
    "replicas": 1,
    "devices": 1,
    "jax": "0.10.2",
}
LOOPED = {"has_batch": False, "looped": "batches", "batch": None}


class Lowering:
    """Stands in for the script's process."""

    def __init__(self) -> None:
        self.batches: list[int | None] = []

    async def lower(self, batch: int | None) -> dict[str, Any]:
        self.batches.append(batch)
        return LOWERED


def report_of(lowering: Lowering, requested: int | None, captured: dict[str, Any]) -> CompileReport:
    request = CompileRequest("train.py", "v5e-1", "v5e", 1, None, requested, is_jax=True)
    tpu: Any = None  # the script's process compiles
    socket: Any = lowering
    compilation = _Compilation(request, socket, tpu, lambda event: None)
    return asyncio.run(compilation.report({**CAPTURED, **captured}))


def test_loop_over_first_dimension_leaves_the_batch_unknown() -> None:
    lowering = Lowering()
    report = report_of(lowering, None, LOOPED)
    assert lowering.batches == [None]  # with the script's own shapes
    assert report.largest_batch is None
    assert any("the batch is unknown" in note and "batches" in note for note in report.notes)


def test_batch_of_a_step_with_a_loop_over_it_is_refused() -> None:
    with pytest.raises(Usage) as raised:
        report_of(Lowering(), 64, LOOPED)
    assert "batches" in str(raised.value)


def test_batch_without_a_loop_is_searched() -> None:
    lowering = Lowering()
    report = report_of(lowering, None, {"has_batch": True, "looped": None, "batch": 8})
    assert lowering.batches[0] == 8
    assert report.largest_batch is not None
