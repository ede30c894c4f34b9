"""Fixtures and hooks for all tests."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.machine_folder import let_programs_import_each_other

if TYPE_CHECKING:
    from tests.support.python_mirror import PythonMirror

# Background processes of a shell ignore SIGINT, and their child processes inherit that: Ctrl-C sent
# by the tests would have no effect.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Garbage collection during the collection of thousands of tests takes a fifth of its time.
gc.disable()

let_programs_import_each_other()

# Their files share what takes long to make, such as a process with TensorFlow or gcloud loaded.
SHARED_FOLDERS = ("tests/crash", "tests/gcloud", "tests/job")

_ALL_TESTS, _SOAK = "not soak and not clients", "soak"
_MESSAGES = pytest.StashKey[list[str]]()
_TRANSCRIPT = pytest.StashKey[Path]()
_VALIDATOR = pytest.StashKey[Any]()
_TALLY = pytest.StashKey[Any]()
_DEADLINE = pytest.StashKey[float]()
_NO_TIME = "no time was left (--minutes)"


@pytest.fixture(scope="session", autouse=True)
def transcript(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Path]:
    """The file in which all local clouds of the tests log their requests and responses."""
    path = tmp_path_factory.mktemp("transcript") / "calls.jsonl"
    pytestconfig.stash[_TRANSCRIPT] = path
    os.environ["TPUCTL_LOCAL_TRANSCRIPT"] = str(path)
    yield path
    del os.environ["TPUCTL_LOCAL_TRANSCRIPT"]


@pytest.fixture
def pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonMirror]:
    """A mirror with Python 3.12 and 3.13, the only builds that uv knows. tpuctl's cache has none
    of them."""
    import shutil

    from tests.support.python_mirror import python_mirror
    from tpuctl.files import archives_folder

    with python_mirror(tmp_path / "pythons", ["3.12", "3.13"]) as mirror:
        for name, value in mirror.variables.items():
            monkeypatch.setenv(name, value)
        if "TPUCTL_CONFIG_HOME" not in os.environ:  # the user's cache stays as it is
            monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "config"))
        shutil.rmtree(archives_folder(), ignore_errors=True)
        yield mirror


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fails a test whose requests or responses do not match Google's API descriptions.

    After the test's fixtures have ended, with their local clouds. A fixture for each of thousands
    of tests, most of which need no cloud, takes longer than most of them.
    """
    yield
    stash = item.config.stash
    transcript = stash.get(_TRANSCRIPT, None)
    if transcript is None or not transcript.exists():
        return
    if _VALIDATOR not in stash:
        # Slow to import; many tests need no cloud.
        from tests.support.transcripts import TranscriptValidator

        stash[_VALIDATOR] = TranscriptValidator(transcript)
    is_malformed = item.get_closest_marker("malformed") is not None
    problems = stash[_VALIDATOR].complaints(("answer",) if is_malformed else ("request", "answer"))
    if problems:
        pytest.fail(
            "Does not match Google's API descriptions:\n" + "\n".join(problems), pytrace=False
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="after so many minutes, no test is started")


def pytest_configure(config: pytest.Config) -> None:
    if (minutes := config.getoption("minutes")) is not None:
        config.stash[_DEADLINE] = time.monotonic() + 60 * minutes


def _is_time_over(config: pytest.Config) -> bool:
    return time.monotonic() > config.stash.get(_DEADLINE, math.inf)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests for which no time is left, and `tensorflow` tests without a Python for their
    version, by default 2.18.0."""
    if _is_time_over(item.config):
        pytest.skip(_NO_TIME)
    for marker in item.iter_markers("tensorflow"):
        # Imported only for these tests.
        from tests.support.prerequisites import require_image

        for version in marker.args or ("2.18.0",):
            require_image(version)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the `long` files to the front; the others stay shuffled, as pytest-randomly left them.

    A long file that starts last keeps one process busy after all others have ended.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute whole files in the order of their collection, and these folders as a whole.

    By itself, pytest-xdist starts with the files that have most tests.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.rpartition("/")[0]
            return folder if folder in SHARED_FOLDERS else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as in the program
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of a pytest-xdist worker to the controller, and delete its transcript."""
    transcript = session.config.stash.get(_TRANSCRIPT, None)
    if transcript is not None:
        transcript.unlink(missing_ok=True)  # hundreds of megabytes, validated after each test
    validator = session.config.stash.get(_VALIDATOR, None)
    if validator is not None and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tally"] = validator.tally.plain()
    if _TALLY in session.config.stash and (messages := _check_methods(session.config)):
        session.config.stash[_MESSAGES] = messages
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _check_methods(config: pytest.Config) -> list[str]:
    """Write, or compare after a run of all tests, the record of what tests call."""
    from tests.support import method_record

    tally, is_soak = config.stash[_TALLY], config.option.markexpr == _SOAK
    if os.environ.get("TPUCTL_WRITE_METHODS"):
        method_record.write(tally, soak=is_soak)
    elif (
        config.option.markexpr in (_ALL_TESTS, _SOAK)
        and not config.option.keyword
        and (config.args_source is pytest.Config.ArgsSource.TESTPATHS)
        and not _is_time_over(config)  # then some tests were left out
    ):
        return method_record.uncalled(tally, soak=is_soak)
    return []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    stash, plain = node.config.stash, getattr(node, "workeroutput", {}).get("tally")
    if plain is not None:
        from tests.support.transcripts import Tally

        stash.setdefault(_TALLY, Tally()).add(plain)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    validator = config.stash.get(_VALIDATOR, None)
    tally = config.stash.get(_TALLY, None) if validator is None else validator.tally
    if tally is not None:
        terminalreporter.write_line(str(tally))
    skipped = terminalreporter.stats.get("skipped", ())
    if left_out := sorted(report.nodeid for report in skipped if _NO_TIME in str(report.longrepr)):
        terminalreporter.write_line(f"Not started, as {_NO_TIME}: {', '.join(left_out)}")
    for message in config.stash.get(_MESSAGES, ()):
        terminalreporter.write_line(f"Recorded as called by tests, but not called: {message}")
