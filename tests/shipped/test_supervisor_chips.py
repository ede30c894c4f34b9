"""The duty cycle and memory of a worker's chips, or why there are none, in its record.

A file replaces the chip. libtpu and tpu-info are Google's; the runtime that they ask is a test's.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.locked_environment import locked_python
from tests.support.polling import until
from tests.support.supervised_worker import Worker

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "support" / "tpu_runtime.py"
DUTY, USED, TOTAL = (
    "tpu.runtime.tensorcore.dutycycle.percent",
    "tpu.runtime.hbm.memory.usage.bytes",
    "tpu.runtime.hbm.memory.total.bytes",
)
CHIPS = [
    {DUTY: 97.5, USED: 19_811_073_228, TOTAL: 33_550_229_504},
    {DUTY: 12.25, USED: 11_166_914_969, TOTAL: 33_550_229_504},
]
# What tpu-info itself reads.
TPU_INFO = """
import json
from tpu_info import device, metrics
print(json.dumps(metrics.get_chip_usage_new(device.TpuChip.V6E)))
"""
WAIT = "import time\nprint('here', flush=True)\ntime.sleep(600)"
# The module libtpu.sdk of broken installations.
CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
HANGS = """
import signal, time
assert signal.getitimer(signal.ITIMER_REAL)[0] > 0, "no alarm is set"
signal.setitimer(signal.ITIMER_REAL, 0.1)
time.sleep(600)
"""


def start_job(worker: Worker, *, has_chip: bool = True, **more: Any) -> None:
    device = worker.home / "accel0"
    if has_chip:
        device.touch()
    chips = {"devices": [str(device)], "locks": []}
    worker.write_spec(WAIT, accelerator=chips, chip_seconds=0.2, **more)
    worker.record("start", "--until", "running", "--timeout", "30")
    worker.until_logged(b"here")


def first_sample(worker: Worker) -> Any:
    until(lambda: worker.read("record.json")["chips"] is not None, "a sample of the chips")
    return worker.read("record.json")["chips"]


def test_machine_without_chips_is_not_sampled(worker: Worker) -> None:
    start_job(worker, has_chip=False)
    assert first_sample(worker)["absence"] == "the machine has no TPU chips"
    assert not (worker.folder / "chips.json").exists()


def test_local_cloud_is_not_sampled(worker: Worker) -> None:
    start_job(worker, env={"TPUCTL_CLOUD": "local"})
    assert first_sample(worker)["absence"] == "the local cloud has no TPUs"
    assert not (worker.folder / "chips.json").exists()


def test_environment_without_libtpu(worker: Worker) -> None:
    start_job(worker)
    sample = first_sample(worker)
    assert sample["absence"] == "libtpu is not installed in the job's environment"
    result = worker.folder / "chips.json"
    for _ in range(2):  # the first one may have started before
        read_at = result.stat().st_mtime_ns
        until(lambda: result.stat().st_mtime_ns > read_at, "another sample")  # noqa: B023
    assert worker.read("record.json")["chips"] == sample, "the same is not uploaded again"


@pytest.mark.parametrize(
    ("module", "absence"),
    [
        (CRASHES, "libtpu ended with signal 11"),
        (HANGS, "libtpu did not answer in time"),
        ("import nowhere", "the libtpu of the job's environment cannot read them: No module named"),
        ("", "libtpu failed: AttributeError: "),
        ("import os\nprint(5, flush=True)\nos._exit(0)", "libtpu ended with exit code 0"),
    ],
    ids=["crash", "hang", "import", "version", "exit"],
)
def test_broken_libtpu_does_not_disturb_job(worker: Worker, module: str, absence: str) -> None:
    package = worker.home / "packages" / "libtpu"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sdk.py").write_text(module)
    start_job(worker, env={"PYTHONPATH": str(package.parent)})
    assert first_sample(worker)["absence"].startswith(absence)
    assert worker.record("status").state == "running"
    assert (worker.folder / "log").read_bytes() == b"here\n"


def test_reader_gets_no_flags_and_no_secrets_of_the_job(worker: Worker) -> None:
    package = worker.home / "packages" / "libtpu"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    variables_file = worker.home / "seen"
    (package / "sdk.py").write_text(
        f"import json, os\nopen({str(variables_file)!r}, 'w').write(json.dumps(dict(os.environ)))"
    )
    flags = {"LIBTPU_INIT_ARGS": "--flag", "TOKEN": "secret"}
    start_job(worker, env={"PYTHONPATH": str(package.parent), **flags})
    first_sample(worker)
    variables = json.loads(variables_file.read_text())
    assert not set(variables) & {*flags, "TPUCTL_FOLDER"}
    assert (variables["TPU_SKIP_MDS_QUERY"], variables["TPU_LOG_DIR"]) == ("1", "disabled")


@contextmanager
def runtime(python: Path, requests: Path) -> Iterator[None]:
    """Serve the metrics of CHIPS."""
    argv = [python, SERVER, requests, json.dumps(CHIPS)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"serving\n", "port 8431 must be free"
        yield
    finally:
        server.kill()
        server.communicate()


@pytest.mark.soak
@pytest.mark.timeout(900)  # the environment is created once
def test_libtpu_reads_metrics_of_runtime(tmp_path: Path) -> None:
    python = locked_python(ROOT / "requirements" / "tpu-info.lock")
    worker = Worker(tmp_path, str(python))
    try:
        start_job(worker)
        absence = first_sample(worker)["absence"]
        assert absence.startswith("no TPU runtime answers on port 8431: "), absence
        with runtime(python, tmp_path / "requests"):
            until(
                lambda: "absence" not in worker.read("record.json")["chips"],
                "the runtime's values",
            )
            sample = worker.read("record.json")["chips"]
            usage = subprocess.check_output([python, "-c", TPU_INFO])
        del sample["at"]
        assert sample == {
            "duty_cycle_percent": [chip[DUTY] for chip in CHIPS],
            "hbm_used_bytes": [chip[USED] for chip in CHIPS],
            "hbm_total_bytes": [chip[TOTAL] for chip in CHIPS],
        }
        assert json.loads(usage) == [
            [number, chip[USED], chip[TOTAL], chip[DUTY]] for number, chip in enumerate(CHIPS)
        ]
        requests = (tmp_path / "requests").read_text().split()
        assert requests[:3] == [DUTY, USED, TOTAL]
        assert not list(tmp_path.glob("**/tpu_driver*")), "libtpu writes no log files"
        until(lambda: "absence" in worker.read("record.json")["chips"], "the end of the runtime")
        record = worker.record("stop", "--grace", "1")
        assert record.chips is not None and record.chips.absence
    finally:
        worker.close()
