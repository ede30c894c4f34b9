"""Work that a machine does once for all jobs that need it, either completely or not at all.

Like `preparation.py`, whose work this is, this file is sent to workers as it is: standard library
only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.jobs.shipped.machine.folder import Folder, private, take_lock, wait_for_lock
else:
    from folder import Folder, private, take_lock, wait_for_lock

OUTPUT_FILE = "install.log"


class Failure(Exception):
    """The work failed; the log contains the output of its commands."""


class RunOnce:
    """One piece of work, with its result in the folder `home`, which is named after its inputs.

    The folder is valid once it contains the file `complete`, written last. Commands inherit the
    lock, so that the next process also waits for an orphaned one.
    """

    def __init__(
        self,
        folder: Folder,
        home: str,
        environment: Mapping[str, str],
        output_file: str = OUTPUT_FILE,
    ) -> None:
        self.folder = folder
        self.home = home
        self.environment = environment
        self.output_file = folder.file(output_file)
        self.lock = -1

    @property
    def is_done(self) -> bool:
        return os.path.exists(os.path.join(self.home, "complete"))

    def do(self, work: Callable[[], str], doing: str) -> None:
        """Do it unless it is already done.

        `doing`, and what `work` returns when it is done, are messages for the job's log.
        """
        os.makedirs(os.path.dirname(self.home), exist_ok=True)
        path = self.home + ".lock"
        lock = take_lock(path)
        if lock is None:
            self.folder.log(f"{doing}: waiting for another job on this machine to finish it")
            lock = wait_for_lock(path)
        self.lock = lock
        try:
            if not self.is_done:
                self.run_work(work, doing)
        finally:
            os.close(self.lock)

    def run_work(self, work: Callable[[], str], doing: str) -> None:
        self.folder.log(doing)
        began = time.monotonic()
        shutil.rmtree(self.home, ignore_errors=True)
        os.makedirs(self.home)
        open(self.output_file, "wb", opener=private).close()
        try:
            message = work()
        except Failure:
            with open(self.folder.file("log"), "ab", opener=private) as log:
                with open(self.output_file, "rb") as output:
                    shutil.copyfileobj(output, log)
            shutil.rmtree(self.home, ignore_errors=True)
            raise
        open(os.path.join(self.home, "complete"), "w", encoding="utf-8").close()
        self.folder.log(f"{message} in {time.monotonic() - began:.0f} s")

    def output(self) -> str:
        """What the commands have printed."""
        with open(self.output_file, encoding="utf-8", errors="replace") as output:
            return output.read()

    def run(
        self,
        *argv: str,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a command, saving its output for the log; returns its exit code."""
        with open(self.output_file, "ab", opener=private) as output:
            return subprocess.call(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=dict(self.environment if environment is None else environment),
                pass_fds=[self.lock],
            )
