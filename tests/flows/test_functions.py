"""`tpuctl.job`: functions of modules, scripts and notebooks on real machines of the local cloud."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import tpuctl
from tests.support.commands import succeed
from tests.support.forked_cli import run_tpuctl
from tests.support.locked_environment import locked_python
from tests.support.python_mirror import portable_interpreter
from tests.support.subprocesses import run_captured
from tpuctl import BlockingTpuctl, RemoteTraceback, TpuctlError
from tpuctl.errors import RemoteFailed, Usage
from tpuctl.interpreters import current
from tpuctl.local_cloud.server_process import LocalCloud

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
JUPYTER = ROOT / "requirements" / "jupyter.lock"
STACK = (
    "stack: functions\nproject: {id: local-project}\n"
    "tpu: {type: v2-8, runtime: tpu-ubuntu2204-base, zones: [us-central1-b]}\n"
)
SLICE = (
    STACK.replace("functions", "sliced")
    .replace("v2-8", "v3-32")
    .replace("us-central1-b", "europe-west4-a")
    + "job: {workers: all}\n"
)
# A package, whose function uses another module of it.
NUMBERS = "def double(number):\n    return 2 * number\n"
TRAIN = """
import os
import sys
from pathlib import Path

import tpuctl
from tpuctl import BlockingTpuctl

from experiments_{name}.numbers import double

STACK = Path(__file__).parents[1] / "tpuctl.yaml"


class Strange(Exception):
    def __init__(self, first, second):
        super().__init__(first)


@tpuctl.job(cloud="local")
def train(rate: float, *, steps: int = 1) -> dict[str, object]:
    print("training at", rate)
    return {{"loss": double(rate) * steps, "worker": os.environ.get("TPUCTL_WORKER")}}


@tpuctl.job(stack="../tpuctl.yaml", cloud="local")
def fail(how: str) -> object:
    if how == "value":
        return int("many")
    if how == "strange":
        raise Strange("odd", "couple")
    if how == "exit":
        sys.exit(3)
    if how == "quit":
        sys.exit(0)
    if how == "large":
        return bytes(33_000_000)
    return lambda: None


@tpuctl.job(stack=STACK, cloud="local")
def each_worker(fails_on: str = "") -> str:
    worker = os.environ["TPUCTL_WORKER"]
    if worker == fails_on:
        raise ValueError(f"worker {{worker}} failed")
    return worker
"""
SCRIPT = """
import sys
import time
from dataclasses import dataclass

import tpuctl


@dataclass
class Settings:
    seconds: float


@dataclass
class Result:
    settings: Settings
    loaded_as: str


@tpuctl.job(stack="tpuctl.yaml", cloud="local")
def wait(settings: Settings) -> Result:
    print("waiting", flush=True)
    time.sleep(settings.seconds)
    return Result(settings, __name__)


if __name__ == "__main__":
    if sys.argv[1] == "again":
        print(wait.result())
    else:
        result = wait.run(Settings(float(sys.argv[1])))
        assert type(result) is Result, type(result)
        print(result)
"""
VERSIONS = """
import platform

import tpuctl


@tpuctl.job(cloud="local", python="3.13")
def version() -> str:
    return platform.python_version()


if __name__ == "__main__":
    print(version.run())
"""
UNGUARDED = """
import tpuctl

@tpuctl.job(stack="tpuctl.yaml", cloud="local")
def train():
    return 1

train.run()
"""
STEPS = """
import jax

@jax.jit
def step(x):
    if x > 0:
        return x
    return -x
"""
REFUSED = """
import tpuctl

@tpuctl.job(stack="tpuctl.yaml", cloud="local")
def train():
    from steps import step
    return float(step(1.0))

if __name__ == "__main__":
    train.run()
"""
CELLS = [
    """
import concurrent.futures
import math
from dataclasses import dataclass

import tpuctl
""",
    """
offset = 10
stack = "tpuctl.yaml"

@dataclass
class Point:
    x: float

origin = Point(1.0)

def root(x):
    return math.sqrt(x)
""",
    """
@tpuctl.job(stack=stack, cloud="local")
def move(point: Point, by: float = offset) -> Point:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return Point(origin.x + pool.submit(root, point.x).result() + by)
""",
    """
moved = move.run(Point(16.0))
assert type(moved) is Point, type(moved)
assert moved == Point(15.0), moved
assert move(Point(16.0)) == moved, "called directly, it runs here"
""",
    """
offset = (each for each in ())
@tpuctl.job(stack=stack, cloud="local")
def sum_up():
    return list(offset)
try:
    sum_up.run()
except tpuctl.TpuctlError as error:
    assert "sum_up uses the variable offset" in str(error), error
else:
    raise AssertionError
""",
]
RUN_NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(each) for each in eval(sys.stdin.read())]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
for cell in notebook.cells:
    print("".join(each.get("text", "") for each in cell.outputs))
"""


@pytest.fixture(scope="module")
def folder(local_cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from bring_up(tmp_path_factory.mktemp("functions"), STACK)


@pytest.fixture(scope="module")
def slice_folder(
    local_cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    yield from bring_up(tmp_path_factory.mktemp("sliced"), SLICE)


def bring_up(folder: Path, stack_file: str) -> Iterator[Path]:
    """A folder with a stack that is up, a package, and a script."""
    (folder / "tpuctl.yaml").write_text(stack_file, "utf-8")
    (folder / "wait.py").write_text(SCRIPT, "utf-8")
    package = folder / f"experiments_{folder.name}"  # a name of its own in sys.modules
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "numbers.py").write_text(NUMBERS, "utf-8")
    (package / "train.py").write_text(TRAIN.format(name=folder.name), "utf-8")
    with BlockingTpuctl(folder / "tpuctl.yaml", cloud="local") as stack:
        stack.up()
        yield folder
        stack.down(delete_bucket=True)


@pytest.fixture
def train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return import_train(folder, monkeypatch)


def import_train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(f"experiments_{folder.name}.train")


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_captured(
        [sys.executable, *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def test_function_of_module_returns_value(
    folder: Path, train: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.train(0.5, steps=3) == {"loss": 3.0, "worker": None}, "called directly: here"
    capsys.readouterr()
    assert train.train.run(0.5, steps=3) == {"loss": 3.0, "worker": "0"}
    output = capsys.readouterr()
    assert "training at 0.5\n" in output.out, "the log is shown"
    assert f"Using the stack file {folder / 'tpuctl.yaml'}.\n" in output.err, "above the module"
    assert train.train.result() == {"loss": 3.0, "worker": "0"}
    with pytest.raises(TypeError, match="step"):  # without a job
        train.train.run(0.5, step=3)


def test_exception_of_function_is_raised(train: Any) -> None:
    with pytest.raises(ValueError, match="many") as caught:
        train.fail.run("value")
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert re.search(r"Worker 0 of job \S+, Python 3\.\d+", str(cause))
    where = r'train\.py", line \d+, in fail\n    return int\("many"\)'
    assert re.search(where, str(cause))
    assert "call-fail" not in str(cause), "the function's own frames only"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("strange", "Strange: odd"),
        ("exit", "failed with exit code 3"),
        ("quit", "without returning a value"),
        ("large", "at most 32000000 are allowed"),
        ("unpicklable", "a value of type function was returned"),
    ],
)
def test_other_ends_of_function(train: Any, how: str, words: str) -> None:
    with pytest.raises(RemoteFailed, match=words):
        train.fail.run(how)


def test_arguments_that_cannot_be_sent(train: Any) -> None:
    with pytest.raises(Usage, match="An argument of train cannot be pickled"):
        train.train.run(lambda: None)
    with pytest.raises(Usage, match=r"have 33\.0 MB; at most 32\.0 MB"):
        train.train.run(bytes(33_000_000))


@pytest.mark.soak
def test_value_is_that_of_first_worker(slice_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = import_train(slice_folder, monkeypatch)
    assert functions.each_worker.run() == "0"
    with pytest.raises(ValueError, match="worker 2 failed") as caught:
        functions.each_worker.run(fails_on="2")
    assert "Worker 2 of job" in str(caught.value.__cause__)


def test_interrupted_script_leaves_job_running(folder: Path) -> None:
    """A function of the script itself; it says how to stop the job, or to get its value."""
    with subprocess.Popen(
        [sys.executable, "wait.py", "600"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "waiting\n"
        script.send_signal(signal.SIGINT)
        _, errors = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGINT
    message = re.search(r"^    wait\.result\(\"(\S+)\"\)\n.*\n    (tpuctl .*)$", errors, re.M)
    assert message is not None, errors
    assert message[2] == f"tpuctl --cloud local stop {message[1]}"
    assert "was destroyed" not in errors
    assert "KeyboardInterrupt" in errors
    with BlockingTpuctl(folder / "tpuctl.yaml", cloud="local") as stack:
        (summary,) = (each for each in stack.jobs() if each.record.id == message[1])
        assert summary.status.exit_code is None, "it still runs"
    stopped = run_tpuctl(*message[2].split()[1:], folder=folder)
    assert stopped.stdout == f"{message[1]}: stopped\n"
    again = python(folder, "wait.py", "again")
    assert f"job {message[1]} stopped with exit code 143" in again.stderr


def test_function_of_script_returns_instance_of_its_class(folder: Path) -> None:
    done = python(folder, "wait.py", "0")
    assert done.stdout.endswith(
        "waiting\nResult(settings=Settings(seconds=0.0), loaded_as='__mp_main__')\n"
    ), done.stderr


@pytest.mark.soak
@pytest.mark.usefixtures("pythons")
def test_function_runs_on_the_python_that_it_asks_for(folder: Path) -> None:
    (folder / "versions.py").write_text(VERSIONS)
    done = python(folder, "versions.py")
    assert done.stdout.splitlines()[-1] == portable_interpreter("3.13").version, done.stderr


@pytest.mark.soak
def test_script_started_as_module(folder: Path) -> None:
    package = folder / f"experiments_{folder.name}"
    (package / "wait.py").write_text("from . import numbers\n" + SCRIPT, "utf-8")
    done = python(folder, "-m", f"{package.name}.wait", "0")
    assert "Result(settings=Settings(seconds=0.0)" in done.stdout, done.stderr


def test_unguarded_call_is_refused(folder: Path) -> None:
    (folder / "unguarded.py").write_text(UNGUARDED, "utf-8")
    done = python(folder, "unguarded.py")
    assert "Call is not guarded: machines load unguarded.py" in done.stderr
    assert 'unguarded.py", line 8' in done.stderr


def test_check_refuses_before_anything_is_sent(folder: Path) -> None:
    (folder / "steps.py").write_text(STEPS, "utf-8")
    (folder / "refused.py").write_text(REFUSED, "utf-8")
    done = python(folder, "refused.py")
    assert "Refused: Script will not run on a TPU" in done.stderr
    assert "steps.py:6:5: TPU601 " in done.stderr, "the finding is below the traceback"
    with BlockingTpuctl(folder / "tpuctl.yaml", cloud="local") as stack:
        assert "refused" not in {job.record.args[0].partition(".")[0] for job in stack.jobs()}


@pytest.mark.soak
def test_function_of_notebook(folder: Path) -> None:
    """In a real kernel, where an event loop is running."""
    interpreter = locked_python(JUPYTER, [current().minor])
    modules = os.pathsep.join([str(ROOT), *(path for path in sys.path if "site-packages" in path)])
    done = succeed(
        [str(interpreter), "-c", RUN_NOTEBOOK],
        cwd=folder,
        input=repr(CELLS),
        env={**os.environ, "PYTHONPATH": modules},
    )
    assert "Error" not in done.stdout


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("lambda: 1", "a lambda has no name"),
        ("nested()", "inner is defined in another function"),
        ("Class.method", "Class.method is a method"),
        ("Class", "Class is not a function"),
        ("asynchronous", "is asynchronous"),
        ("print", "print is not a function"),
    ],
)
def test_functions_that_cannot_be_jobs(definition: str, problem: str) -> None:
    def nested() -> Any:
        def inner() -> None: ...

        return inner

    with pytest.raises(Usage, match=problem):
        tpuctl.job()(eval(definition, globals(), {"nested": nested}))


class Class:
    def method(self) -> None: ...


async def asynchronous() -> None: ...


@tpuctl.job(stack="absent.yaml", cloud="local")
def without_stack() -> int:
    return 1


def test_installed_function(folder: Path) -> None:
    installed = tpuctl.job(stack=folder / "tpuctl.yaml", cloud="local")(yaml.safe_dump)
    with pytest.raises(Usage, match="its module yaml is installed"):
        installed.run("text")


def test_missing_stack_file() -> None:
    assert without_stack() == 1
    with pytest.raises(TpuctlError, match=r"flows/absent\.yaml"):  # next to the module
        without_stack.run()
