"""storage-testbench answers as the table says too, but where a case says why it cannot.

TPUCTL_STORAGE_TESTBENCH=~/storage-testbench pytest tests/oracle
"""

from __future__ import annotations

import os

import pytest

from tests.support.storage_cases import Case, Server, load, run

CASES = load() if os.environ.get("TPUCTL_STORAGE_TESTBENCH") else load()[:1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, testbench: Server) -> None:
    if not case.testbench_differs:
        run(case, testbench)
        return
    try:
        run(case, testbench)
    except Exception:
        return
    pytest.fail(f"it answers as the table says by now: drop «{case.testbench_differs}»")
