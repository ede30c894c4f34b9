"""The start of the program, before any command."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator

import pytest

from tests.support.polling import until
from tpuctl import __main__


@pytest.fixture
def collected_again() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.enable()


@pytest.mark.usefixtures("collected_again")
def test_garbage_collection_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short commands end before it; long ones need it."""
    enabled: list[bool] = []

    def command(_: list[str]) -> int:
        enabled.append(gc.isenabled())
        until(gc.isenabled, "garbage collection", 20)
        return 7

    monkeypatch.setattr(__main__, "COLLECT_AFTER", 0.1)
    monkeypatch.setattr(__main__, "_run", command)
    monkeypatch.setattr(__main__, "_prepare_streams", lambda: None)
    monkeypatch.setattr(atexit, "register", lambda _: None)
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 7
    assert enabled == [False]
