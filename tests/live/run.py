"""`make live`: the flow tests on a user's Google Cloud project or a local cloud, with cleanup.

Exit codes: 0 success; 1 a test failed, or something is left; 2 settings are missing, or the run was
not confirmed; 124 timed out; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.harness.compare import write_differences
from tests.live.harness.settings import ROOT, InvalidSettings, Settings
from tpuctl.errors import TpuctlError
from tpuctl.local_cloud import remote_control, server_process

HERE = Path(__file__).resolve().parent
CLEANUP_SECONDS = 1800.0
GRACE_SECONDS = 20.0
TIMED_OUT, INTERRUPTED = 124, 130


def main() -> int:
    try:
        settings = Settings.from_environment(os.environ)
    except InvalidSettings as error:
        print(error, file=sys.stderr)
        return 2
    print(settings.announcement(), flush=True)
    if not is_confirmed(settings) or not is_signed_in(settings):
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.default_int_handler
        )  # raises KeyboardInterrupt, so that everything is deleted
    for file in (settings.record, settings.transcript):
        file.unlink(missing_ok=True)
    folder = settings.folder / settings.stack
    folder.mkdir(parents=True)
    settings.save(folder / "run.json")
    with cloud_of(settings) as environment:
        try:
            code = run_tests(settings, folder / "run.json", environment)
        finally:
            is_clean = clean(folder / "run.json", environment)
    record_end(settings, exit_code=code, is_clean=is_clean)
    print(f"Recorded in {settings.record}")
    print(f"Its calls, without what is private: {settings.transcript}")
    try:
        print(f"Differences: {write_differences(settings.folder)}")
    except TpuctlError as error:  # a killed run may have left half a line
        print(f"Not compared: {error}")
    return code if is_clean else max(code, 1)


def is_confirmed(settings: Settings) -> bool:
    """Whether the user accepted the cost."""
    if settings.cloud == "local" or os.environ.get("TPUCTL_LIVE_YES") == "1":
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("Confirmation requires a terminal; set TPUCTL_LIVE_YES=1.", file=sys.stderr)
        return False
    try:
        answer = input("Continue? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        print("Nothing was created.", file=sys.stderr)
        return False
    return True


def is_signed_in(settings: Settings) -> bool:
    """Whether there are credentials."""
    if settings.cloud == "local":
        return True
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError:
        print(
            "Not signed in. Sign in with\n    gcloud auth application-default login",
            file=sys.stderr,
        )
        return False
    return True


@contextmanager
def cloud_of(settings: Settings) -> Iterator[dict[str, str]]:
    """The environment variables for the tests; starts a local cloud if one is configured."""
    environment = {
        **os.environ,
        "TPUCTL_CONFIG_HOME": str(settings.folder / "config"),  # a separate SSH key
        "TPUCTL_CLOUD": settings.cloud,
    }
    if settings.cloud == "google":
        yield environment
        return
    with tempfile.TemporaryDirectory(prefix="tpuctl-live-") as folder:
        home = Path(settings.local_home or f"{folder}/cloud")
        cloud = server_process.start(home)
        try:
            remote_control.change_settings(cloud, nodes="denied")  # as for most projects at Google
            yield environment | {"TPUCTL_LOCAL_HOME": str(home)}
        finally:
            if not settings.local_home:
                server_process.stop(home)


def run_tests(settings: Settings, run: Path, environment: dict[str, str]) -> int:
    """Run the tests; return 0, 1, TIMED_OUT or INTERRUPTED."""
    seconds = settings.minutes * 60
    command = [sys.executable, "-P", "-m", "pytest", str(HERE / "test_stack.py")]
    command += ["-p", "no:randomly", "-p", "no:cacheprovider", "-v", "--tb", "short"]
    command += ["-W", "default"]  # the clients' warnings are not errors
    command += ["--timeout", str(seconds), "-c", str(ROOT / "pyproject.toml")]
    tests = subprocess.Popen(
        command, cwd=ROOT, env=environment | {"TPUCTL_LIVE_RUN": str(run)}, stdin=subprocess.DEVNULL
    )
    try:
        code = tests.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"\nTimed out after {settings.minutes:g} minutes.", flush=True)
        code = TIMED_OUT
    except KeyboardInterrupt:
        print("\nInterrupted: deleting everything.", flush=True)
        code = INTERRUPTED
    stop(tests)
    return code if code in (0, TIMED_OUT, INTERRUPTED) else 1


def stop(process: subprocess.Popen[Any]) -> None:
    """Interrupt the process; kill it if it does not exit."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(GRACE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            continue
        return


def clean(run: Path, environment: dict[str, str]) -> bool:
    """Delete everything; return whether nothing is left. Ctrl-C does not reach the new session."""
    command = [sys.executable, "-P", "-m", "tests.live.harness.cleanup", str(run)]
    process = subprocess.Popen(command, cwd=HERE, env=environment, start_new_session=True)
    is_warned = False
    while True:
        try:
            return process.wait(CLEANUP_SECONDS) == 0
        except KeyboardInterrupt:
            if not is_warned:
                is_warned = True
                print("Still deleting; press Ctrl-C again to leave the rest.", flush=True)
                continue
        except subprocess.TimeoutExpired:
            pass
        stop(process)
        print("Something may be left and charged: see the commands above.", flush=True)
        return False


def record_end(settings: Settings, **facts: Any) -> None:
    """Add the run's result to the record."""
    if settings.record.exists():
        record = json.loads(settings.record.read_text("utf-8"))
        record["ended"] = facts
        settings.record.write_text(json.dumps(record, indent=1), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
