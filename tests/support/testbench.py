"""storage-testbench, a public emulator of Cloud Storage, in a separate environment.

It is not a package: clone googleapis/storage-testbench and set TPUCTL_STORAGE_TESTBENCH to the
checkout. Only its dependencies are installed here, and cached.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

LOCK = Path(__file__).parents[1] / "oracle" / "requirements.lock"


def checkout() -> str:
    """The path of the checkout; "" if not configured."""
    return os.environ.get("TPUCTL_STORAGE_TESTBENCH", "")


def _python() -> Path:
    """The interpreter of a virtual environment with the locked packages; created if missing."""
    digest = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = user_cache_path("tpuctl-tests") / f"storage-testbench-{digest}"
    python = folder / "bin" / "python"
    done = folder / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", "--require-hashes", "-r", str(LOCK)]
        subprocess.run(command, check=True, timeout=280)
        done.touch()
    return python


@contextmanager
def running() -> Iterator[tuple[str, int]]:
    """Run it; yields its URL and the id of its first process."""
    folder = checkout()
    command = [str(_python()), "-m", "gunicorn", "--bind=127.0.0.1:0", "--threads=4"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with tempfile.TemporaryFile("a+") as errors:  # a pipe that is not read would block it
        server = subprocess.Popen(
            [*command, "testbench:run()"],
            cwd=folder,
            env=variables | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            stderr=errors,
            stdout=subprocess.DEVNULL,
        )
        try:
            while (match := re.search(r"Listening at: (http://\S+)", _text(errors))) is None:
                assert server.poll() is None, f"storage-testbench did not start:\n{_text(errors)}"
                time.sleep(0.01)
            yield match[1], server.pid
        finally:
            server.terminate()
            server.wait(30)


def _text(errors: IO[str]) -> str:
    errors.seek(0)
    return errors.read()
