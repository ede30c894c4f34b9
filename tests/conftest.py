"""What every test relies on."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Background processes of a shell ignore SIGINT, and their child processes inherit that: Ctrl-C sent
# by the tests would have no effect.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of tests are collected, and stay: searching them for garbage takes a fifth of the time.
gc.disable()

_COURT = pytest.StashKey[Any]()
_TALLY = pytest.StashKey[Any]()


@pytest.fixture(scope="session", autouse=True)
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where every local cloud that the tests start writes down what it is asked and answers."""
    path = tmp_path_factory.mktemp("transcript") / "calls.jsonl"
    os.environ["TPUCTL_LOCAL_TRANSCRIPT"] = str(path)
    yield path
    del os.environ["TPUCTL_LOCAL_TRANSCRIPT"]
    path.unlink(missing_ok=True)  # some hundred megabytes, judged by now


@pytest.fixture(autouse=True)
def as_google_describes(request: pytest.FixtureRequest, transcript: Path) -> Iterator[None]:
    """Fails a test during which something passed that Google's own descriptions do not have so."""
    yield
    if not transcript.exists():
        return
    stash = request.config.stash
    if _COURT not in stash:
        from tests.support.transcripts import Judge  # not for the many tests that speak to no cloud

        stash[_COURT] = Judge(transcript)
    is_malformed = request.node.get_closest_marker("malformed") is not None
    complaints = stash[_COURT].complaints(("answer",) if is_malformed else ("request", "answer"))
    if complaints:
        pytest.fail("Not as Google describes it:\n" + "\n".join(complaints), pytrace=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs a TensorFlow goes on where a Python for it is; 2.18.0 unless it says so."""
    for marker in item.iter_markers("tensorflow"):
        # Not for the many tests that need none.
        from tests.support.prerequisites import require_image

        for version in marker.args or ("2.18.0",):
            require_image(version)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What one of several processes judged goes to the one that they work for."""
    court = session.config.stash.get(_COURT, None)
    if court is not None and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tally"] = court.tally.plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    stash, plain = node.config.stash, getattr(node, "workeroutput", {}).get("tally")
    if plain is not None:
        from tests.support.transcripts import Tally

        stash.setdefault(_TALLY, Tally()).add(plain)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    court = config.stash.get(_COURT, None)
    tally = config.stash.get(_TALLY, None) if court is None else court.tally
    if tally is not None:
        terminalreporter.write_line(str(tally))
