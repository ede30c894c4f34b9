"""Samples the duty cycle and memory use of a worker's chips while its script runs.

libtpu, which jax[tpu] and torch_xla[tpu] install, reads them from the process that trains. It is a
library of the job's environment, so each sample is taken by a short-lived process under the job's
Python, `chip_reader.py`: whatever happens there, the supervisor and the job go on.

Like `attempt.py`, which imports it, this file is sent to workers as it is: standard library only,
Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    import subprocess
    from typing import Any

    from tpuctl.jobs.shipped.chips.chips import device_files
    from tpuctl.jobs.shipped.machine.clock import now
    from tpuctl.jobs.shipped.machine.folder import Folder, private
    from tpuctl.jobs.shipped.machine.processes import script_python
else:
    from chips import device_files
    from clock import now
    from folder import Folder, private
    from processes import script_python

INTERVAL = 30.0  # seconds between samples; each takes 0.2 s of a CPU
# Of the script's variables, those by which its Python finds libtpu. Others may be flags of XLA, or
# secrets.
VARIABLES = (
    "HOME",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONPATH",
    "TPU_LIBRARY_PATH",
    "VIRTUAL_ENV",
)
# Of libtpu: it needs no metadata to ask the runtime, and would write two log files each time.
SETTINGS = {"TPU_SKIP_MDS_QUERY": "1", "TPU_LOG_DIR": "disabled"}


class ChipSampler:
    """The latest sample of an attempt's chips on one worker."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.interval = float(spec.get("chip_seconds", INTERVAL))
        self.reader: subprocess.Popen[bytes] | None = None
        self.due = time.monotonic() + self.interval
        absence = ""
        if (spec.get("env") or {}).get("TPUCTL_CLOUD") == "local":
            absence = "the local cloud has no TPUs"
        elif not device_files(spec):
            absence = "the machine has no TPU chips"
        self.has_chips = not absence
        self.sample = {"at": now(), "absence": absence} if absence else None

    def update(self) -> dict[str, Any] | None:
        """The latest sample for the record; None before the first. Never waits for the reader."""
        if self.reader is not None:
            if self.reader.poll() is not None:
                self.update_sample(self.read_result(self.reader.returncode))
                self.reader = None
        elif self.has_chips and time.monotonic() >= self.due:
            self.due = time.monotonic() + self.interval
            try:
                self.start_reader()
            except OSError as error:  # such as a full disk, or no memory for a process
                self.update_sample({"absence": f"libtpu could not be started: {error}"})
        return self.sample

    def update_sample(self, result: dict[str, Any]) -> None:
        """The same absence is not recorded again: each new record is uploaded."""
        last = self.sample or {}
        if "absence" not in result or result["absence"] != last.get("absence"):
            self.sample = {"at": now(), **result}

    def start_reader(self) -> None:
        import subprocess  # it takes a while to load

        job_parent = self.folder.job_parent()
        python, variables = ("", {}) if job_parent is None else script_python(job_parent)
        if not variables:  # the script is about to start, or has ended
            return
        environment = {name: variables[name] for name in VARIABLES if name in variables}
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chip_reader.py")
        with open(self.result_file, "wb", opener=private) as output:
            self.reader = subprocess.Popen(
                [python, program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={**environment, **SETTINGS},
                start_new_session=True,
            )

    def read_result(self, code: int) -> dict[str, Any]:
        if code == -signal.SIGALRM:
            return {"absence": "libtpu did not answer in time"}
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(self.result_file, "rb") as file:
                result = json.loads(file.read().splitlines()[-1])
            if code == 0 and isinstance(result, dict):
                return result
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"absence": f"libtpu ended with {ended}"}

    @property
    def result_file(self) -> str:
        return self.folder.file("chips.json")
