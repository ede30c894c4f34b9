"""Parameters of jobs that no option sets."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.jobs import launch


def change_job_spec(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Change the parameters of jobs, such as the log's size on the machine."""
    spec = launch._spec
    monkeypatch.setattr(launch, "_spec", lambda *args: {**spec(*args), **more})
