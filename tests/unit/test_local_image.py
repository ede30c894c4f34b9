"""How `up` prepares the local cloud's images for a stack's TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prerequisites import hide_interpreters
from tpuctl.catalog import runtime
from tpuctl.errors import TpuctlError
from tpuctl.flows.local_cloud import machine_python, prepare_image
from tpuctl.interpreters import current
from tpuctl.local_cloud.machine_images import ImageStore
from tpuctl.model.events import Event, Note, Outcome, StepFinished


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only the running Python, and an empty image cache."""
    hide_interpreters(tmp_path, monkeypatch)
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(tmp_path / "images"))
    return tmp_path


def stranger() -> str:
    """A TensorFlow without wheels for the running Python."""
    images = ImageStore()
    return next(
        version for version in images.locks() if current().minor not in images.interpreters(version)
    )


async def prepared(
    tensorflow: str | None, events: list[Event], answer: bool, python: str | None = None
) -> list[str]:
    """Prepare until the image would be built; returns the prompts."""
    questions: list[str] = []

    def may_install(question: str) -> bool:
        questions.append(question)
        return answer

    def emit(event: Event) -> None:
        events.append(event)
        if getattr(event, "address", "").startswith("image/"):
            raise InterruptedError

    with pytest.raises((InterruptedError, TpuctlError)):
        await prepare_image(tensorflow, emit, may_install, python=python)
    return questions


async def test_substitute_tensorflow_is_reported(alone: Path) -> None:
    version, events = stranger(), list[Event]()
    assert await prepared(version, events, answer=False)
    if not ImageStore().available():
        pytest.skip(f"no TensorFlow has wheels for Python {current().minor}")
    note = next(event for event in events if isinstance(event, Note))
    assert f"instead of {version}: no Python" in note.text
    assert "\n" not in note.text


async def test_substitute_python_is_reported(alone: Path) -> None:
    base = runtime("tpu-ubuntu2204-base")
    assert base is not None
    events: list[Event] = []
    assert await prepared(None, events, answer=True, python=base.python) == []
    assert [event.text for event in events if isinstance(event, Note)] == [
        f"The machines of the local cloud have Python {current().minor} instead of 3.10: no Python "
        "3.10 was found on PATH, in pyenv or in uv."
    ]
    assert machine_python(base) == current().minor


@pytest.mark.parametrize("answer", [True, False])
async def test_uv_runs_after_confirmation(
    alone: Path, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails, since it can read no list of Pythons."""
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(alone / "downloads.json"))
    version, events = stranger(), list[Event]()
    minor = ImageStore().interpreters(version)[0]
    [question] = await prepared(version, events, answer=answer)
    assert f"Download Python {minor} with uv?" in question
    ended = [event for event in events if isinstance(event, StepFinished)]
    downloads = [event for event in ended if event.address == f"python/{minor}"]
    assert [event.outcome for event in downloads] == [Outcome.FAILED] * answer
    assert all("downloads.json" in event.because for event in downloads)
    assert any(isinstance(event, Note) for event in events) is bool(ImageStore().available())
