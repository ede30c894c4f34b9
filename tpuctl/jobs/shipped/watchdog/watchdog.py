#!/usr/bin/env python3
"""Deletes forgotten machines: runs on each machine of a stack and enforces the stack's limits.

This file is the machines' startup script: standard library only, Python 3.8 and later. Without
arguments it starts the watchdog and then becomes the user's startup script, from the metadata
`tpuctl-startup-script`; `start` only starts the watchdog, for `ensure_watchdog.py`. A watchdog
holds `lock` in its folder and writes `watchdog.json` there at each check.

The watchdog reads its configuration from the metadata `tpuctl-watchdog` each time, so limits can be
changed while it runs:

    max_seconds, reason   maximum age of the TPU, and the limit that sets it
    idle_seconds          maximum time without activity: no job, no login, no chip in use; of a job
                          that serves notebooks, what its kernels do is activity, not what they hold
    tpu                   URL of the TPU, for its creation time; `{instance}` in it is the name of
                          this machine
    peers                 URLs of the guest attributes with the time of the last activity on each
                          machine of the stack, or of the list of its instances; empty if there is
                          one machine
    delete                URLs of the resources to delete, in order; the machine itself is last
    count_chip_use        whether a program that holds a chip counts as activity
    spending              limits of what all machines of the stack, or of the project in a month,
                          spend: the first worker, or the controller, reports `items` to `ledgers`
                          in buckets. As soon as they have been read, their sums replace the
                          maximum age; until then, what was left is in the metadata `tpuctl-left`,
                          with the user who is counted
    notify                settings of notifications, if the stack file has any: `bell.py`, whose
                          programs are in the metadata `tpuctl-bell`, sends them

All machines of a stack run it. Each decides alone, worker 0 first; machines whose activity is
unknown are ignored. Before a machine is deleted, its jobs are stopped as by a time limit, so that
the bucket has their ends. What they do then delays the deletion by a minute or so at most.

On a controller it also restarts `recoverer.py`, which recovers jobs, after it was killed or the
machine restarted.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import glob
import http.client
import json
import os
import pwd
import re
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

MAX_TICK, MIN_TICK = 30.0, 0.2
MAX_RETRY_DELAY = 300.0
WORKER_DELAY = 60.0  # seconds that worker n waits longer than worker n - 1
SAVE_SECONDS = 30.0  # between SIGTERM and SIGKILL for a job whose machine reaches a limit
END_SECONDS = 75.0  # until its end is uploaded; afterwards the machine is deleted in any case
CONFIG = "instance/attributes/tpuctl-watchdog"
BELL = "instance/attributes/tpuctl-bell"
BELL_INTERVAL = 60.0  # seconds between tries to send notifications
NEW_SECONDS, NEW_TICK = 600.0, 3.0  # seconds between checks until the TPU is reported as ready
BELL_SECONDS = 10.0  # for which a notification may delay the deletion of the machine
ATTRIBUTES = "instance/guest-attributes/tpuctl"
LEFT = "instance/attributes/tpuctl-left"
STORAGE = "https://storage.googleapis.com"
REPORT_SECONDS = 60.0  # between reports to the ledger
SILENCE = 300.0  # that a period counts on after its last report
MAX_PRICE = 1e6  # US dollars per hour of a period
MAX_CONFLICTS = 5  # with other machines that write to the ledger
PERIOD_KEY = ("stack", "item", "zone")
END_POLL_SECONDS = 2.0
# Earlier versions of tpuctl may run jobs here: their job parent was `keeper.py`.
LIMIT = re.compile(r"\(limits\.(\w+)\)")  # in a reason
JOB = re.compile(
    r"(?:^|/)\.tpuctl/jobs/([^/]+/[^/]+)/(?:.+/)?(?:job_parent|keeper|supervisor)\.py$"
)
# What sshd calls the process of a login: `sshd: user@pts/0`; since OpenSSH 9.8 `sshd-session: …`.
LOGIN = re.compile(r"sshd(?:-session)?: [^ ]+@(\S*)")
CHIP = re.compile(r"/dev/(?:accel|vfio/)\d+")  # as in tpu-info
CREATING_STATES = (
    *("CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING"),
    *("PENDING", "PROVISIONING", "STAGING"),  # of instances
)
READY_STATES = ("READY", "RUNNING")
DELETING_STATES = ("DELETING", "STOPPING", "SUSPENDING")
ENDED_STATES = ("PREEMPTED", "STOPPED", "TERMINATED", "SUSPENDED")


# Decisions ----------------------------------------------------------------------------------


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    argv: list[str]


def activity(
    processes: Iterable[Process],
    first: int | None,
    notebooks: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The current activity in a few words, "" if there is none.

    `first` is the first process of a machine of the local cloud, which replaces sshd: only its
    descendants belong to the machine, and logins are sessions of its children. `notebooks` has the
    state of jobs that serve notebooks, by job and attempt.
    """
    table = {process.pid: process for process in processes}
    notebooks = notebooks or {}
    serves_notebook = any(job_of(process) in notebooks for process in table.values())
    parents = {process.parent for process in table.values()}
    for process in table.values():
        if first is not None and not is_below(process, first, table):
            continue
        job = job_of(process)
        if job is not None and job not in notebooks:
            return "a job is running"
        if job is not None:
            if notebooks[job].get("is_busy"):
                return "a notebook's kernel is busy"
            continue
        login = LOGIN.match(process.argv[0]) if process.argv else None
        # A connection without a terminal or a command forwards a port: that of the notebook.
        is_forwarding = login and login[1] == "notty" and process.pid not in parents
        if login and not (serves_notebook and is_forwarding):
            return "a user is logged in"
        if first is not None and process.parent == first and process.session == process.pid:
            return "a user is logged in"
    return ""


def job_of(process: Process) -> str | None:
    """Job and attempt that a supervisor, or a job's parent, belongs to."""
    matches = (JOB.search(part) for part in process.argv)
    return next((match[1] for match in matches if match), None)


def is_below(process: Process, first: int, table: dict[int, Process]) -> bool:
    seen = set()
    while process.pid not in seen:
        if process.parent == first:
            return True
        seen.add(process.pid)
        parent = table.get(process.parent)
        if parent is None:
            return False
        process = parent
    return False


def tick(config: dict[str, Any], age: float) -> float:
    """Seconds until the next check."""
    idle, oldest = config.get("idle_seconds"), config.get("max_seconds")
    seconds = idle / 4 if idle else MAX_TICK
    if oldest and age < oldest:
        seconds = min(seconds, oldest - age)
    return float(min(MAX_TICK, max(MIN_TICK, seconds)))


def age_limit_reason(config: dict[str, Any], now: float, created: float) -> str:
    """Why the machine must be deleted because of its age, "" if it need not."""
    limit = config.get("max_seconds")
    if not limit or now < created + limit:
        return ""
    return str(config.get("reason") or "it reached its maximum age")


def idle_limit_reason(config: dict[str, Any], now: float, active: float) -> str:
    """Why the machine must be deleted because it is idle, "" if it need not."""
    limit = config.get("idle_seconds")
    if not limit or now < active + limit:
        return ""
    return f"no activity for {now - active:.0f} seconds (limits.idle)"


def is_busy(machine: Mapping[str, float], limit_time: float) -> bool:
    """Whether a job may still be ending on a machine, by its times, since a limit was reached."""
    was_active = machine.get("last-active", 0.0) > limit_time - 2 * MAX_TICK
    return was_active and machine.get("jobs-ended", 0.0) < limit_time


class Spent(NamedTuple):
    """What the periods of a ledger sum up to, and at which rates it grows."""

    cost: float  # US dollars
    hours: float  # with a TPU
    per_hour: float
    tpus: int


def period_end(period: Mapping[str, Any], now: float, read: float) -> float:
    """Until when a period counts. If it had reported when the ledger was read, it counts on."""
    if period.get("ended"):
        return min(now, parse_timestamp(period["ended"]))
    silent = parse_timestamp(period["last_report"]) + SILENCE if period.get("last_report") else now
    return now if silent >= read else silent


def month_start(now: float) -> float:
    """The first second of the month, in UTC."""
    year, month = time.gmtime(now)[:2]
    return float(calendar.timegm((year, month, 1, 0, 0, 0)))


def spent(ledger: Mapping[str, Any], now: float, read: float, begin: float = 0.0) -> Spent:
    """The sum of a ledger that was last read at a time, since another."""
    since = parse_timestamp(ledger["since"]) if ledger.get("since") else begin
    cost = hours = per_hour = 0.0
    tpus = 0
    for period in ledger["periods"]:
        end = period_end(period, now, read)
        count = max(0.0, end - max(since, parse_timestamp(period["started"]))) / 3600
        is_tpu, price = period["item"] == "tpu", float(period["per_hour"])
        if not 0 <= price <= MAX_PRICE:  # nor NaN, which no limit is below
            raise ValueError(f"per_hour: {price}")
        cost += price * count
        hours += count * is_tpu
        if end >= now and not period.get("ended"):
            per_hour += price
            tpus += is_tpu
    return Spent(cost, hours, per_hour, tpus)


def spending_limit_reason(settings: Mapping[str, Any], sums: Spent) -> str:
    """Why the machines must be deleted because of what was spent, "" if they need not."""
    if settings.get("budget") is not None and sums.cost >= settings["budget"]:
        return f"the project's stacks have cost ${sums.cost:.2f} this month (limits.budget)"
    if settings.get("max_hours") and sums.hours >= settings["max_hours"]:
        return f"the stack had a TPU for {sums.hours:.2f} hours (limits.max_hours)"
    if settings.get("max_cost") and sums.cost >= settings["max_cost"]:
        return f"the stack has cost ${sums.cost:.2f} (limits.max_cost)"
    return ""


def seconds_left(settings: Mapping[str, Any], sums: Spent) -> float:
    """Seconds until a limit is reached."""
    left = [MAX_TICK]
    if settings.get("max_hours") and sums.tpus:
        left.append((settings["max_hours"] - sums.hours) / sums.tpus * 3600)
    for limit in (settings.get("max_cost"), settings.get("budget")):
        if limit and sums.per_hour:
            left.append((limit - sums.cost) / sums.per_hour * 3600)
    return max(MIN_TICK, min(left))


def reported(
    periods: Iterable[Mapping[str, Any]], item: Mapping[str, Any], created: float | None, now: float
) -> list[Mapping[str, Any]]:
    """The periods after a report: that an item exists since a time, or no longer (None)."""
    started = None if created is None else timestamp(created)
    key = {name: item[name] for name in PERIOD_KEY}
    after: list[Mapping[str, Any]] = []
    for period in periods:
        is_same = all(period.get(name) == value for name, value in key.items())
        if is_same and period["started"] == started:
            continue
        is_over = is_same and not period.get("ended")
        end = {"ended": timestamp(period_end(period, now, now))} if is_over else {}
        after.append({**period, **end})
    if started is not None:
        price = {"user": item["user"], "per_hour": item["per_hour"]}
        after.append(
            {**key, **price, "started": started, "last_report": timestamp(now), "ended": None}
        )
    return after


def without_reports(periods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The periods without the times of reports, which change all the time."""
    return [{**period, "last_report": None} for period in periods]


def timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def parse_timestamp(text: str) -> float:
    """Seconds since 1970 of an API's `2026-01-31T18:00:00.123Z` or `…-08:00`."""
    match = re.match(r"(\d+-\d+-\d+T\d+:\d+:\d+)(?:\.\d+)?(?:Z|([+-])(\d+):(\d+))$", text)
    if match is None:
        raise ValueError(text)
    seconds = float(calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")))
    if match[2]:
        offset = int(match[3]) * 3600 + int(match[4]) * 60
        seconds += offset if match[2] == "-" else -offset
    return seconds


def state_of(resource: Mapping[str, Any]) -> str:
    """The state of a node, queued resource or instance; "" for what has none."""
    state = resource.get("state") or resource.get("status")
    if isinstance(state, dict):  # of a queued resource; that of an instance group has no name
        state = state.get("state")
    return str(state or "")


def is_being_changed(response: Mapping[str, Any]) -> bool:
    """Whether Compute Engine refuses a call because another one, such as a deletion, still runs."""
    errors = response.get("error", {}).get("errors", ())
    return any(error.get("reason") == "resourceNotReady" for error in errors)


# Observations -------------------------------------------------------------------------------


def processes() -> list[Process]:
    running = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                argv = file.read().decode(errors="replace").rstrip("\0").split("\0")
            if fields[0] not in (b"Z", b"X"):
                running.append(Process(pid, int(fields[1]), int(fields[3]), argv))
    return running


def has_chips_in_use(table: dict[int, Process], jobs: Container[str]) -> bool:
    """Whether a program holds a chip, except programs of these jobs."""
    parents = [pid for pid, process in table.items() if job_of(process) in jobs]
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if CHIP.match(os.readlink(link)):
                holder = table.get(int(link.split("/")[2]))
                if holder is None or not any(is_below(holder, pid, table) for pid in parents):
                    return True
    return False


def notebooks() -> dict[str, dict[str, Any]]:
    """What jobs that serve notebooks say about their kernels, by job and attempt."""
    states = {}
    for home in homes():
        jobs = os.path.join(home, ".tpuctl/jobs")
        for path in glob.glob(os.path.join(jobs, "*/*/notebook.json")):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                states[os.path.relpath(os.path.dirname(path), jobs)] = dict(json.load(file))
    return states


def homes() -> list[str]:
    home = os.path.expanduser("~")
    return sorted({home, "/root", *glob.glob("/home/*"), *glob.glob(os.path.dirname(home) + "/*")})


def last_activity_mark() -> float:
    """Time of the last job submission or watchdog check by a user: too brief to be observed."""
    newest = 0.0
    for home in homes():
        for name in ("jobs", "watchdog/active"):
            with contextlib.suppress(OSError):
                newest = max(newest, os.stat(os.path.join(home, ".tpuctl", name)).st_mtime)
    return newest


def process_start_time(pid: int) -> bytes:
    """Distinguishes a process from a later one with the same PID; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else fields[19]


def restart_recoverers() -> None:
    """Start the recoverers on this machine that do not run, each as its user."""
    for home in homes():
        for program in glob.glob(os.path.join(home, ".tpuctl/recover/*/recoverer.py")):
            import subprocess  # it takes a while to load

            folder = os.path.dirname(program)
            with contextlib.suppress(OSError, KeyError, subprocess.SubprocessError):
                # Without a command its job has ended.
                if os.path.exists(os.path.join(folder, "command.json")) and not is_held(folder):
                    run_as_owner([(home, [program, "start", folder])], 60.0)


def stop_jobs(because: str) -> None:
    """Stop the jobs that run here as by a time limit; returns once the bucket has their ends, or
    after END_SECONDS.

    Their supervisors do it. Those of earlier versions of tpuctl do not know the option.
    """
    limit = LIMIT.search(because)
    options = [
        f"--grace={SAVE_SECONDS:g}",
        f"--limit={limit[1] if limit else 'max_hours'}",
        f"--detail=its machine reached a limit: {because}",
    ]
    programs = []
    for home in homes():
        for program in glob.glob(os.path.join(home, ".tpuctl/jobs/*/*/supervisor.py")):
            folder = os.path.dirname(program)
            if is_held(folder):
                programs.append((home, [program, "stop", folder, *options]))
    run_as_owner(programs, END_SECONDS)


def is_held(folder: str) -> bool:
    """Whether a process holds the folder's lock."""
    try:
        handle = os.open(os.path.join(folder, "lock"), os.O_RDWR)
    except FileNotFoundError:  # nothing has been started there yet
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def run_as_owner(programs: Iterable[tuple[str, list[str]]], timeout: float) -> None:
    """Run Python programs, each as the user of a home and in it; wait for all of them, at most
    `timeout` seconds."""
    import subprocess  # it takes a while to load

    def start(home: str, arguments: list[str]) -> Any:
        status = os.stat(home)
        try:
            name = pwd.getpwuid(status.st_uid).pw_name
        except KeyError:  # in a container whose user has no account
            name = os.environ.get("USER") or str(status.st_uid)

        def drop_privileges() -> None:
            if status.st_uid != os.getuid():
                os.initgroups(name, status.st_gid)
                os.setgid(status.st_gid)
                os.setuid(status.st_uid)

        return subprocess.Popen(
            [sys.executable, "-S", "-I", *arguments],
            cwd=home,
            env=dict(os.environ, HOME=home, USER=name, LOGNAME=name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=drop_privileges,  # noqa: PLW1509 - there is one thread
        )

    running = [start(home, arguments) for home, arguments in programs]
    deadline = time.monotonic() + timeout
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def start_bell(folder: str, programs: dict[str, str], settings: dict[str, Any]) -> Any:
    """Start the program that sends notifications."""
    import subprocess  # it takes a while to load

    folder = os.path.join(folder, "bell")
    os.makedirs(folder, exist_ok=True)
    for name, text in programs.items():
        with open(os.path.join(folder, os.path.basename(name)), "w", encoding="utf-8") as file:
            file.write(text)
    argv = [sys.executable, "-S", "-I", os.path.join(folder, "bell.py")]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(settings).encode())
    process.stdin = None
    return process


# Requests -----------------------------------------------------------------------------------


class Clock:
    """Google's time, from its servers' Date headers, independent of the machine's clock.

    Between responses it advances by a monotonic clock. Otherwise a machine with a wrong clock would
    be deleted too early, or never.
    """

    def __init__(self) -> None:
        self.offset = time.time() - uptime()

    def now(self) -> float:
        return uptime() + self.offset

    def synchronize(self, date: str | None) -> None:
        """Set the clock by a Date header, which has whole seconds and may be missing."""
        with contextlib.suppress(TypeError, ValueError):  # an invalid header is ignored
            server_time = parsedate_to_datetime(date or "").timestamp()
            if abs(server_time - self.now()) > 2:
                self.offset = server_time - uptime()


def uptime() -> float:
    """Seconds on a monotonic clock that includes the time that the machine was suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Cloud:
    """The machine's metadata server, and Google's APIs with the machine's own account."""

    def __init__(self) -> None:
        self.host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self.is_local = self.host.startswith("127.")
        self.tag = "0"  # of the last value read
        self.clock = Clock()
        self.opener: Any = None  # for HTTPS

    def metadata(self, path: str, put: str | None = None, seconds: float = 0.0) -> str | None:
        """Read a value, None if missing, or write `put`. `seconds` extend the timeout."""
        body = None if put is None else put.encode()
        url = f"/computeMetadata/v1/{path}"
        server = http.client.HTTPConnection(self.host, timeout=10 + seconds)
        try:
            server.request("PUT" if body else "GET", url, body, {"Metadata-Flavor": "Google"})
            response = server.getresponse()
            if response.status == 404:
                return None
            if response.status >= 300:
                raise OSError(f"metadata server: HTTP {response.status}: {response.reason}")
            self.tag = response.headers.get("ETag", "0")
            self.clock.synchronize(response.headers.get("Date"))
            return response.read().decode()
        finally:
            server.close()

    def attribute(self, name: str) -> str | None:
        return self.metadata(f"instance/attributes/{name}")

    def worker_number(self) -> int:
        """The machine's number in its slice, also where Compute Engine sells the slice."""
        names = ("agent-worker-number", "worker-id")
        return int(next(filter(None, map(self.attribute, names)), 0))

    def call(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        """The HTTP status and JSON of a response. Raises OSError if there is none."""
        grant = json.loads(
            self.metadata("instance/service-accounts/default/token") or '{"access_token": ""}'
        )
        import urllib.error
        import urllib.request

        if self.opener is None:
            import ssl

            # SSL_CERT_DIR, otherwise SSL_CERT_FILE, which takes longer to read. The opener honors
            # https_proxy.
            tls = ssl.create_default_context(capath=os.environ.get("SSL_CERT_DIR"))
            self.opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls))
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method)
        request.add_header("Authorization", "Bearer " + grant["access_token"])
        request.add_header("Content-Type", "application/json")
        try:
            with self.opener.open(request, timeout=60) as response:
                self.clock.synchronize(response.headers.get("Date"))
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read()
        try:
            return status, json.loads(text or b"null")
        except ValueError:
            return status, {"error": {"message": text.decode(errors="replace")}}


class Ledger:
    """What machines have spent, of a stack or of all of a project: an object that they update."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.contents: dict[str, Any] | None = None  # None: never read
        self.generation = ""
        self.read_at = self.written_at = 0.0  # by Google's clock

    def sums(self, now: float) -> Spent | None:
        """What was spent, None if unknown. If it cannot be read any more, what it had counts on."""
        if self.contents is None:
            return None
        return spent(self.contents, now, self.read_at, self.begin(now))

    def begin(self, now: float) -> float:
        return 0.0 if self.settings.get("budget") is None else month_start(now)

    def report(self, cloud: Cloud, items: Iterable[tuple[Mapping[str, Any], float | None]]) -> None:
        """Read the ledger, and add reports about items. Raises OSError, and others if damaged."""
        from urllib.parse import quote

        name = quote(self.settings["object"], safe="")
        bucket = f"storage/v1/b/{self.settings['bucket']}/o"
        for _ in range(MAX_CONFLICTS):
            self.read(cloud, f"{STORAGE}/{bucket}/{name}")
            assert self.contents is not None
            now, before = cloud.clock.now(), self.contents["periods"]
            begin = self.begin(now)
            after = [period for period in before if period_end(period, now, now) >= begin]
            for item, created in items:
                after = reported(after, item, created, now)
            is_due = now - self.written_at >= REPORT_SECONDS
            is_changed = without_reports(before) != without_reports(after)
            self.contents["periods"] = after
            if not after or not (is_due or is_changed):
                return
            query = f"uploadType=media&name={name}&ifGenerationMatch={self.generation}"
            url = f"{STORAGE}/upload/{bucket}?{query}"
            status, response = cloud.call("POST", url, self.contents)
            if status == 200:
                self.generation, self.written_at = response["generation"], now
                return
            self.generation = ""
            if status != 412:
                raise OSError(f"cannot write the ledger: HTTP {status}")
        raise OSError("cannot write the ledger: others are writing to it")

    def read(self, cloud: Cloud, url: str) -> None:
        status, info = cloud.call("GET", url)
        if status not in (200, 404):
            raise OSError(f"cannot read the ledger: HTTP {status}")
        generation = info["generation"] if status == 200 else "0"
        if generation != self.generation or self.contents is None:
            contents: dict[str, Any] = {"version": 1, "periods": []}
            if status == 200:
                status, contents = cloud.call("GET", f"{url}?alt=media&generation={generation}")
                if status != 200:
                    raise OSError(f"cannot read the ledger: HTTP {status}")
                spent(contents, 0.0, 0.0)  # raises if it is damaged
            self.contents, self.generation = contents, generation
        self.read_at = cloud.clock.now()


# The watchdog -------------------------------------------------------------------------------


class Watchdog:
    """The watchdog; `boot` is the process that runs the user's startup script, if any."""

    def __init__(self, folder: str, boot: int | None) -> None:
        self.folder = folder
        self.boot = (boot, process_start_time(boot)) if boot else None
        self.cloud = Cloud()
        self.first = os.getppid() if self.cloud.is_local else None
        self.worker = 0
        self.config_text: str | None = None  # as in the metadata
        self.tag = "0"  # its etag
        self.config: dict[str, Any] = {}
        self.clock = self.cloud.clock
        self.created: float | None = None
        self.started = uptime()
        self.active = self.reported_active = time.monotonic()  # excludes time while suspended
        self.last_mark: Any = None  # see last_activity_mark, and of notebooks
        self.limit_time: float | None = None  # when a limit was reached, by Google's clock
        self.delete_at = 0.0  # on the monotonic clock
        self.delay = 0.0  # until the next attempt to delete
        self.bell: Any = None  # the process that sends notifications
        self.bell_due = 0.0  # on the monotonic clock
        self.is_reporting = self.is_reported = False  # that the TPU is ready
        self.ledgers: list[Ledger] = []
        self.is_deleted = False  # a resource, just now
        self.left: dict[str, Any] = {}  # of the limits, when the machine was created
        self.creation_times: dict[str, float] = {}  # by URL, of this machine and its TPU
        self.state: dict[str, Any] = {"pid": os.getpid(), "started": self.clock.now()}

    def run(self) -> None:
        while True:
            try:
                self.check()
            except Exception as error:
                self.save(failure=f"{type(error).__name__}: {error}")
                import traceback

                traceback.print_exc()
                self.back_off()
            self.wait(max(self.tick(), self.delay))

    def tick(self) -> float:
        seconds = tick(self.config, self.clock.now() - self.tpu_created_at())
        is_new = uptime() - self.started < NEW_SECONDS
        if self.config.get("notify") and is_new and not self.is_reported:
            seconds = min(seconds, NEW_TICK)
        for ledger in self.ledgers:
            sums = ledger.sums(self.clock.now())
            if sums is not None:
                seconds = min(seconds, seconds_left(ledger.settings, sums))
        return seconds if self.limit_time is None else min(seconds, END_POLL_SECONDS)

    def tpu_created_at(self) -> float:
        """When the TPU was created; if unknown, when the watchdog started."""
        return self.created or self.clock.now() - (uptime() - self.started)

    def last_active(self) -> float:
        """Time of the last activity here, by Google's clock."""
        return self.clock.now() - (time.monotonic() - self.active)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds`, or until the configuration changes."""
        end = time.monotonic() + seconds
        if self.config_text and seconds >= 1:
            query = f"?wait_for_change=true&timeout_sec={int(seconds)}&last_etag={self.tag}"
            with contextlib.suppress(OSError):
                configuration = self.cloud.metadata(f"{CONFIG}{query}", seconds=seconds)
                if configuration is not None and configuration != self.config_text:
                    return
        time.sleep(max(0.0, end - time.monotonic()))

    def back_off(self) -> None:
        self.delay = min(max(self.tick(), self.delay * 2), MAX_RETRY_DELAY)

    def save(self, **changes: Any) -> None:
        self.state.update(changes, heartbeat=self.clock.now(), last_active=self.last_active())
        write(os.path.join(self.folder, "watchdog.json"), self.state)

    def check(self) -> None:
        self.config_text, self.tag = self.cloud.metadata(CONFIG), self.cloud.tag
        self.config = json.loads(self.config_text or "{}")
        self.worker = min(self.cloud.worker_number(), 5)
        served = notebooks()
        times = sorted(str(state.get("last_activity")) for state in served.values())
        current, mark = self.current_activity(served), (last_activity_mark(), times)
        if current or mark != self.last_mark:  # not >, since the machine's clock may be set back
            self.active, self.last_mark = time.monotonic(), mark
        self.save(activity=current)
        self.report_activity()
        restart_recoverers()
        self.notify()
        self.report_spending()
        because = self.reason()
        if not because:
            self.limit_time, self.delay, self.is_deleted = None, 0.0, False
            return
        if self.limit_time is None:
            self.limit_time = self.clock.now()
            self.delete_at = time.monotonic() + self.worker * WORKER_DELAY
            self.notify(because)
            self.end_jobs(because)
            self.wait_for_bell()
        if time.monotonic() >= self.delete_at and not self.must_wait():
            self.log(f"deleting this machine: {because}")
            self.delete_next(because)

    def end_jobs(self, because: str) -> None:
        """Stop the jobs here, and publish that they have ended. Nothing that fails here keeps the
        machine from being deleted."""
        self.log(f"stopping jobs: {because}")
        try:
            stop_jobs(because)
            if self.config.get("peers"):
                self.cloud.metadata(f"{ATTRIBUTES}/jobs-ended", f"{self.clock.now():.3f}")
        except Exception:
            import traceback

            traceback.print_exc()

    def notify(self, limit: str = "") -> None:
        """Let a process report that the TPU is ready, or the limit that it reached, and send what
        is unsent. The first worker does. It waits for no receiver, and no error matters."""
        settings = self.config.get("notify")
        is_sending = self.bell is not None and self.bell.poll() is None
        if not settings or self.worker != 0 or (is_sending and not limit):
            return
        try:
            created = self.created_to_report(settings, limit)
            if created is None and not limit and time.monotonic() < self.bell_due:
                return
            if is_sending:
                self.bell.kill()
            programs = json.loads(self.cloud.metadata(BELL) or "{}")
            facts = {"limit": limit, "now": self.clock.now(), "created": created}
            self.bell = start_bell(self.folder, programs, {**settings, **facts})
            self.bell_due = time.monotonic() + BELL_INTERVAL
            self.is_reporting = created is not None
        except Exception:
            import traceback

            traceback.print_exc()

    def created_to_report(self, settings: dict[str, Any], limit: str) -> float | None:
        """When the TPU was created, if this machine has to report it, or its limit."""
        if self.is_reporting and self.bell.poll() == 0:
            self.is_reported = True
        if not settings["is_reporter"] or (self.is_reported and not limit):
            return None
        if not self.is_in_slice(settings["instance"]):
            return None
        is_ready = limit or self.query_tpu() in READY_STATES
        return self.created if is_ready else None

    def is_in_slice(self, first: str) -> bool:
        """Whether this machine is in the slice of that name; all are if it is empty."""
        name = self.cloud.metadata("instance/name") if first else ""
        return name == first or str(name).startswith(first + "-")

    def wait_for_bell(self) -> None:
        """Let a notification of the limit be sent, before the machine is gone."""
        deadline = time.monotonic() + BELL_SECONDS
        while self.bell is not None and self.bell.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)

    def must_wait(self) -> bool:
        """Whether jobs may still be ending on machines that are deleted with this one."""
        if not self.config.get("peers") or self.is_too_old() == "":
            return False  # idle machines have no jobs
        if time.monotonic() >= self.delete_at + END_SECONDS:
            return False
        return any(is_busy(machine, self.limit_time or 0.0) for machine in self.query_peers())

    def current_activity(self, served: dict[str, dict[str, Any]]) -> str:
        if self.boot and process_start_time(self.boot[0]) == self.boot[1]:
            return "the startup script is running"
        table = {process.pid: process for process in processes()}
        current = activity(table.values(), self.first, served)
        if not current and self.config.get("count_chip_use") and has_chips_in_use(table, served):
            return "a program is using the TPU"
        return current

    def report_activity(self) -> None:
        """Publish the time of the last activity to the other machines."""
        if self.config.get("peers") and self.active > self.reported_active:
            with contextlib.suppress(OSError):  # guest attributes may be forbidden
                self.cloud.metadata(f"{ATTRIBUTES}/last-active", f"{self.last_active():.3f}")
                self.reported_active = self.active

    def reason(self) -> str:
        """Why this machine should be deleted, "" if it should not."""
        if self.config.get("max_seconds"):
            if self.created is None:
                self.query_tpu()
            if self.is_too_old():  # a TPU node may have been recreated
                self.query_tpu()
            because = self.is_too_old()
            if because:
                return because
        because = self.is_too_idle()
        if because and self.query_tpu() in CREATING_STATES:  # a controller is ready before its TPU
            self.active = time.monotonic()
        elif because and self.config.get("peers"):
            now = self.clock.now()
            times = [machine.get("last-active", 0.0) for machine in self.query_peers()]
            idle = min([max(0.0, now - moment) for moment in times], default=now)
            self.active = max(self.active, time.monotonic() - idle)
        return because and self.is_too_idle()

    def is_too_old(self) -> str:
        now = self.clock.now()
        totals = [(ledger.settings, ledger.sums(now)) for ledger in self.ledgers]
        reasons = [
            spending_limit_reason(limits, total) for limits, total in totals if total is not None
        ]
        because = next(filter(None, reasons), "")
        if because or (totals and len(reasons) == len(totals)):
            return because
        return age_limit_reason({**self.config, **self.left}, now, self.tpu_created_at())

    def report_spending(self) -> None:
        """Add what exists to the ledgers, and read their sums. One machine of the stack does. If it
        fails, the last sum grows on, and without one the age counts."""
        settings = self.config.get("spending")
        self.left = json.loads(self.cloud.metadata(LEFT) or "{}") if settings else {}
        if not settings or self.worker != 0 or not self.is_in_slice(settings["instance"]):
            self.ledgers = []
            return
        if [ledger.settings for ledger in self.ledgers] != settings["ledgers"]:
            self.ledgers = [Ledger(each) for each in settings["ledgers"]]
        if self.is_deleted:
            return
        failures = [self.report_to(ledger, settings["items"]) for ledger in self.ledgers]
        self.save(ledger_failure="; ".join(filter(None, failures)))

    def report_to(self, ledger: Ledger, items: Iterable[Mapping[str, Any]]) -> str:
        """Add what exists to a ledger; returns what failed."""
        try:
            user = {"user": self.left.get("user", "")}
            existing = [({**item, **user}, self.creation_time(item)) for item in items]
            ledger.report(self.cloud, existing)
        except Exception as error:
            return f"{ledger.settings['bucket']}: {type(error).__name__}: {error}"
        return ""

    def creation_time(self, item: Mapping[str, Any]) -> float | None:
        """When an item was created; None if it does not exist. Raises OSError."""
        if item["url"] in self.creation_times and not item["is_remote"]:
            return self.creation_times[item["url"]]
        status, resource = self.cloud.call("GET", item["url"])
        if item["is_remote"] and (status == 404 or state_of(resource or {}) in ENDED_STATES):
            return None
        created = (resource or {}).get("createTime") or (resource or {}).get("creationTimestamp")
        if status != 200 or not created:
            raise OSError(f"{item['url']}: HTTP {status}")
        self.creation_times[item["url"]] = parse_timestamp(created)
        return self.creation_times[item["url"]]

    def end_spending(self) -> None:
        """Add the end of what is being deleted to the ledgers."""
        self.is_deleted = True
        for ledger in self.ledgers:
            with contextlib.suppress(Exception):
                items = self.config["spending"]["items"]
                ledger.report(self.cloud, [(item, None) for item in items])

    def is_too_idle(self) -> str:
        return idle_limit_reason(self.config, time.monotonic(), self.active)

    def query_tpu(self) -> str:
        """The TPU's state, "" if unknown; also updates its creation time.

        While that is unknown, age counts from the start of the watchdog.
        """
        url = self.config["tpu"]
        if "{instance}" in url:
            url = url.format(instance=self.cloud.metadata("instance/name"))
        status, tpu = self.cloud.call("GET", url)
        if status != 200 or not tpu:
            return ""
        created = tpu.get("createTime") or tpu.get("creationTimestamp")
        if created:
            self.created = parse_timestamp(created)
        return state_of(tpu)

    def peers(self) -> Iterator[str]:
        """URLs of the guest attributes of the stack's machines."""
        for url in self.config["peers"]:
            instances, _, query = url.partition("?filter=")
            if not query:
                yield url
                continue
            status, response = self.cloud.call("GET", url)
            for instance in response.get("items", ()) if status == 200 else ():
                yield f"{instances}/{instance['name']}/getGuestAttributes?queryPath=tpuctl/"

    def query_peers(self) -> list[dict[str, float]]:
        """The times that the stack's machines have published, by name, as far as available."""
        published = []
        for url in self.peers():
            is_node = url.endswith(":getGuestAttributes")
            with contextlib.suppress(OSError):
                status, response = self.cloud.call(
                    "POST" if is_node else "GET", url, {"queryPath": "tpuctl/"} if is_node else None
                )
                machines = response.get("guestAttributes", [response]) if status == 200 else []
                for attributes in machines:
                    items = attributes.get("queryValue", {}).get("items", ())
                    times = {item["key"]: item["value"] for item in items if "key" in item}
                    names = ("last-active", "jobs-ended")
                    published.append({name: float(times[name]) for name in names if name in times})
        return published

    def delete_next(self, because: str) -> None:
        """Delete the next resource; the machine itself last, after the others."""
        for url in self.config.get("delete", ()):
            status, body = self.cloud.call("GET", url.partition("?")[0])
            if status == 404:
                continue
            if status == 200 and state_of(body or {}) in DELETING_STATES:
                break
            status, response = self.cloud.call("DELETE", url)
            if status in (200, 404) or is_being_changed(response or {}):
                self.log(f"deleted {url}")
                self.delay = 0.0
                self.end_spending()
                break
            failure = f"{url}: HTTP {status}: {(response or {}).get('error', {}).get('message')}"
            self.is_deleted = False
            self.log(f"cannot delete {failure}")
            self.save(failure=failure, because=because)
            return self.back_off()
        return self.save(failure="", because=because)

    def log(self, text: str) -> None:
        print(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text, flush=True)
        with contextlib.suppress(OSError), open("/dev/console", "w", encoding="utf-8") as console:
            console.write(f"tpuctl: {text}\n")


def write(path: str, value: dict[str, Any]) -> None:
    """Write a file atomically, readable for all users of the machine."""
    with open(path + ".part", "w", encoding="utf-8") as target:
        json.dump(value, target)
    os.chmod(path + ".part", 0o644)
    os.replace(path + ".part", path)


# Startup ------------------------------------------------------------------------------------


def state_folder() -> str:
    """The folder of this user's watchdog: /run/tpuctl for root where possible."""
    choices = ["/run/tpuctl"] if os.getuid() == 0 else []
    for path in [*choices, os.path.expanduser("~/.tpuctl/watchdog")]:
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)
            open(os.path.join(path, "lock"), "a").close()
            os.chmod(os.path.join(path, "lock"), 0o644)
            return path
    raise OSError("no writable folder for the watchdog's state")


def start(boot: int | None) -> None:
    """Start a watchdog in its own session, and wait until it holds its lock."""
    folder = state_folder()
    ready, notify = os.pipe()
    if os.fork() == 0:
        os.setsid()
        parent = os.getpid()
        if os.fork() != 0:
            os._exit(0)
        try:
            while os.getppid() == parent:  # until the machine's first process adopts this one
                time.sleep(0.001)
            os.close(ready)
            os.chdir("/")
            out = os.open(
                os.path.join(folder, "watchdog.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
            )
            for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
                os.dup2(source, target)
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR)
            if lock_file(lock):
                watchdog = Watchdog(folder, boot)
                watchdog.save(activity="")
                os.close(notify)
                watchdog.run()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(notify)
    os.wait()
    os.read(ready, 1)  # returns when the watchdog closes it
    os.close(ready)


def lock_file(lock: int) -> bool:
    """Hold a lock for the rest of this process; retries while others test it."""
    for _ in range(50):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.02)
    return False


def become_startup_script() -> None:
    """Become the user's startup script, so that Google's runner sees its output and exit code."""
    script = None
    for _ in range(30):
        with contextlib.suppress(OSError):
            script = Cloud().attribute("tpuctl-startup-script")
            break
        time.sleep(1)
    if not script:
        return
    import tempfile

    path = os.path.join(tempfile.mkdtemp(prefix="tpuctl-startup-"), "startup-script")
    with open(path, "w", encoding="utf-8") as target:
        target.write(script)
    os.chmod(path, 0o755)
    if script.startswith("#!"):
        os.execv(path, [path])
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    os.execv(shell, [shell, path])


def main(arguments: list[str]) -> int:
    if arguments == ["start"]:
        start(None)
    elif not arguments:
        # Google's runner ends with this process alone (KillMode=process of the guest agent's
        # google-startup-scripts.service): the watchdog keeps running.
        start(os.getpid())
        become_startup_script()
    else:
        print("usage: watchdog.py [start]", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
