"""The checks of a script before it is submitted, in any Python that runs tpuctl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.errors import Refused
from tpuctl.preflight.submit_gate import require_python


def test_parser_warnings_are_hidden(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('import re\nDIGIT = re.compile("\\d")\n')  # warns, shown from 3.12 on
    require_python(script)


def test_syntax_error_is_reported_with_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\ny = (\n")
    with pytest.raises(Refused) as refused:
        require_python(script)
    assert refused.value.diagnostics[0].where.startswith(f"{script}:2")
