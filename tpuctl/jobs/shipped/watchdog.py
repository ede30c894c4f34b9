#!/usr/bin/env python3
"""Deletes forgotten machines: lives on each of a stack's machines and enforces its limits.

This file is the machines' startup script as it is: standard library only, Python 3.8 and later.
Without arguments it starts the watch and then becomes the user's own startup script, from the
metadata `tpuctl-startup-script`; `start` starts the watch alone, for `ensure_watchdog.py`. A watch
holds `lock` in its folder and writes `watch.json` there at each look.

The watch reads its orders from the metadata `tpuctl-watch`, anew each time, so that limits can be
changed while it runs:

    max_seconds, why   how old the TPU may become, and the limit that says so
    idle_seconds       how long nothing may happen: no job, no login, no chip in use
    created            URL that tells when the TPU was made
    peers              URLs of the guest attributes in which the stack's machines say when
                       something last happened on them; empty where there is one machine
    remove             URLs of what is to be deleted, in that order; the machine itself is the last
    chips              whether a program that holds a chip counts as activity

All machines of a stack run it. Each decides alone, worker 0 first; a machine whose activity
nobody can tell does not keep the others.

On a controller it also starts again what goes on with jobs there, `recoverer.py`, after that was
killed or the machine began anew.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import glob
import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

__all__ = ["main"]

LONGEST_TICK, SHORTEST_TICK = 30.0, 0.2
SLOWEST_RETRY = 300.0
TURN = 60.0  # seconds that worker n waits longer than worker n - 1, should that one be dead
ORDERS = "instance/attributes/tpuctl-watch"
ATTRIBUTE = "instance/guest-attributes/tpuctl/busy"
# Programs of tpuctl from before the job's parent had its name may run jobs here: `keeper.py`.
JOB = re.compile(r"(?:^|/)\.tpuctl/jobs/.+/(?:job_parent|keeper|supervisor)\.py$")
# What sshd calls the process of a login: `sshd: user@pts/0`; since OpenSSH 9.8 `sshd-session: …`.
LOGIN = re.compile(r"sshd(?:-session)?: [^ ]+@")
CHIP = re.compile(r"/dev/(?:accel|vfio/)\d+")  # as tpu-info tells who uses a chip
MAKING = ("CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING")
VANISHING = ("DELETING", "STOPPING", "SUSPENDING")


# Decisions ----------------------------------------------------------------------------------


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    argv: list[str]


def activity(processes: Iterable[Process], first: int | None) -> str:
    """What goes on here in a few words, "" for nothing.

    `first` is the first process of a machine of the local cloud, which stands in for sshd: the
    processes below it are all that belong to the machine, and logins begin sessions under it.
    """
    table = {one.pid: one for one in processes}
    for one in table.values():
        if first is not None and not is_below(one, first, table):
            continue
        if any(JOB.search(part) for part in one.argv):
            return "a job runs"
        if one.argv and LOGIN.match(one.argv[0]):
            return "somebody is logged in"
        if first is not None and one.parent == first and one.session == one.pid:
            return "somebody is logged in"
    return ""


def is_below(one: Process, first: int, table: dict[int, Process]) -> bool:
    seen = set()
    while one.pid not in seen:
        if one.parent == first:
            return True
        seen.add(one.pid)
        above = table.get(one.parent)
        if above is None:
            return False
        one = above
    return False


def tick(orders: dict[str, Any], age: float) -> float:
    """Seconds until the next look."""
    idle, oldest = orders.get("idle_seconds"), orders.get("max_seconds")
    wanted = idle / 4 if idle else LONGEST_TICK
    if oldest and age < oldest:
        wanted = min(wanted, oldest - age)
    return float(min(LONGEST_TICK, max(SHORTEST_TICK, wanted)))


def too_old(orders: dict[str, Any], now: float, created: float, worker: int) -> str:
    """Why the machine is to go for its age, "" if it is not."""
    limit = orders.get("max_seconds")
    if not limit or now < created + limit + worker * TURN:
        return ""
    return str(orders.get("why") or "it is too old")


def too_idle(orders: dict[str, Any], now: float, active: float, worker: int) -> str:
    """Why the machine is to go for doing nothing, "" if it is not."""
    limit = orders.get("idle_seconds")
    if not limit or now < active + limit + worker * TURN:
        return ""
    return f"nothing happened for {now - active:.0f} seconds (limits.idle)"


def seconds_of(moment: str) -> float:
    """Seconds since 1970 of an API's `2026-01-31T18:00:00.123Z` or `…-08:00`."""
    found = re.match(r"(\d+-\d+-\d+T\d+:\d+:\d+)(?:\.\d+)?(?:Z|([+-])(\d+):(\d+))$", moment)
    if found is None:
        raise ValueError(moment)
    seconds = float(calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")))
    if found[2]:
        offset = int(found[3]) * 3600 + int(found[4]) * 60
        seconds += offset if found[2] == "-" else -offset
    return seconds


# What can be seen on the machine ------------------------------------------------------------


def processes() -> list[Process]:
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                argv = file.read().decode(errors="replace").rstrip("\0").split("\0")
            if fields[0] not in (b"Z", b"X"):
                found.append(Process(pid, int(fields[1]), int(fields[3]), argv))
    return found


def has_chips_in_use() -> bool:
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if CHIP.match(os.readlink(link)):
                return True
    return False


def homes() -> list[str]:
    own = os.path.expanduser("~")
    return sorted({own, "/root", *glob.glob("/home/*"), *glob.glob(os.path.dirname(own) + "/*")})


def last_sign() -> float:
    """When somebody last submitted a job or looked after the watch: too short to be seen."""
    newest = 0.0
    for home in homes():
        for name in ("jobs", "watch/active"):
            with contextlib.suppress(OSError):
                newest = max(newest, os.stat(os.path.join(home, ".tpuctl", name)).st_mtime)
    return newest


def birth(pid: int) -> bytes:
    """Tells a process from a later one of the same number; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else fields[19]


def revive() -> None:
    """Start what recovers jobs from here and does not run, as the user whose it is."""
    for home in homes():
        for program in glob.glob(os.path.join(home, ".tpuctl/recover/*/recoverer.py")):
            folder = os.path.dirname(program)
            with contextlib.suppress(OSError, KeyError, subprocess.SubprocessError):
                if not os.path.exists(os.path.join(folder, "ended.json")) and not is_held(folder):
                    start_as_owner([sys.executable, "-S", "-I", program, "start", folder], home)


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


def start_as_owner(command: list[str], home: str) -> None:
    there = os.stat(home)
    name = pwd.getpwuid(there.st_uid).pw_name
    environment = dict(os.environ, HOME=home, USER=name, LOGNAME=name)

    def become() -> None:
        if there.st_uid != os.getuid():
            os.initgroups(name, there.st_gid)
            os.setgid(there.st_gid)
            os.setuid(there.st_uid)

    subprocess.run(
        command,
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=become,
        timeout=60,
        check=True,
    )


# What is asked of others --------------------------------------------------------------------


class Clock:
    """Google's time, as its servers tell it with their answers, whatever the machine's clock says.

    Between two answers it goes on by a clock that nobody sets. A machine whose clock is wrong would
    else be deleted too early, or never.
    """

    def __init__(self) -> None:
        self.ahead = time.time() - uptime()

    def now(self) -> float:
        return uptime() + self.ahead

    def hear(self, date: str | None) -> None:
        """A Date header, which is of whole seconds; there may be none."""
        with contextlib.suppress(TypeError, ValueError):  # nobody is to stop the watch by one
            told = parsedate_to_datetime(date or "").timestamp()
            if abs(told - self.now()) > 2:
                self.ahead = told - uptime()


def uptime() -> float:
    """Seconds on a clock that goes on while the machine is suspended."""
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
        self.opener = urllib.request.build_opener()  # honors https_proxy and SSL_CERT_FILE
        self.direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def metadata(self, path: str, put: str | None = None, seconds: float = 0.0) -> str | None:
        """A value, None when there is none; or a value written. May take `seconds` longer."""
        body = None if put is None else put.encode()
        url = f"http://{self.host}/computeMetadata/v1/{path}"
        request = urllib.request.Request(url, data=body, method="PUT" if body else "GET")
        request.add_header("Metadata-Flavor", "Google")
        try:
            with self.direct.open(request, timeout=10 + seconds) as answer:
                self.tag = answer.headers.get("ETag", "0")
                self.clock.hear(answer.headers.get("Date"))
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            raise

    def attribute(self, name: str) -> str | None:
        return self.metadata(f"instance/attributes/{name}")

    def call(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        """HTTP status and JSON of an answer. Raises OSError when there is none."""
        granted = json.loads(
            self.metadata("instance/service-accounts/default/token") or '{"access_token": ""}'
        )
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method)
        request.add_header("Authorization", "Bearer " + granted["access_token"])
        request.add_header("Content-Type", "application/json")
        try:
            with self.opener.open(request, timeout=60) as answer:
                self.clock.hear(answer.headers.get("Date"))
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read()
        try:
            return status, json.loads(text or b"null")
        except ValueError:
            return status, {"error": {"message": text.decode(errors="replace")}}


# The watch ----------------------------------------------------------------------------------


class Watch:
    """One watch; `boot` is the process that runs the user's startup script, if there is one."""

    def __init__(self, folder: str, boot: int | None) -> None:
        self.folder = folder
        self.boot = (boot, birth(boot)) if boot else None
        self.cloud = Cloud()
        self.first = os.getppid() if self.cloud.is_local else None
        self.worker = 0
        self.read: str | None = None  # the orders as they stand in the metadata, and their tag
        self.tag = "0"
        self.orders: dict[str, Any] = {}
        self.clock = self.cloud.clock
        self.created: float | None = None
        self.started = uptime()
        self.active = self.told = time.monotonic()  # which stands still while suspended
        self.sign: float | None = None  # what was seen last of those too short to be seen
        self.delay = 0.0  # until the next try to delete
        self.state: dict[str, Any] = {"pid": os.getpid(), "started": self.clock.now()}

    def run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:
                self.save(failure=f"{type(error).__name__}: {error}")
                traceback.print_exc()
                self.back_off()
            self.rest(max(self.tick(), self.delay))

    def tick(self) -> float:
        return tick(self.orders, self.clock.now() - self.beginning())

    def beginning(self) -> float:
        """When the TPU was made, else when the watch began."""
        return self.created or self.clock.now() - (uptime() - self.started)

    def last_active(self) -> float:
        """When something last happened here, in Google's time."""
        return self.clock.now() - (time.monotonic() - self.active)

    def rest(self, seconds: float) -> None:
        """Wait so long, or until the orders are others."""
        end = time.monotonic() + seconds
        if self.read and seconds >= 1:
            query = f"?wait_for_change=true&timeout_sec={int(seconds)}&last_etag={self.tag}"
            with contextlib.suppress(OSError):
                found = self.cloud.metadata(f"{ORDERS}{query}", seconds=seconds)
                if found is not None and found != self.read:
                    return
        time.sleep(max(0.0, end - time.monotonic()))

    def back_off(self) -> None:
        self.delay = min(max(self.tick(), self.delay * 2), SLOWEST_RETRY)

    def save(self, **changes: Any) -> None:
        self.state.update(changes, heartbeat=self.clock.now(), active=self.last_active())
        write(os.path.join(self.folder, "watch.json"), self.state)

    def look(self) -> None:
        self.read, self.tag = self.cloud.metadata(ORDERS), self.cloud.tag
        self.orders = json.loads(self.read or "{}")
        self.worker = min(int(self.cloud.attribute("agent-worker-number") or 0), 5)
        doing, sign = self.doing(), last_sign()
        if doing or sign != self.sign:  # the clock that files are dated by may be set meanwhile
            self.active, self.sign = time.monotonic(), sign
        self.save(doing=doing)
        self.tell()
        revive()
        because = self.reason()
        if because:
            self.say(f"this machine goes: {because}")
            self.remove(because)
        else:
            self.delay = 0.0

    def doing(self) -> str:
        if self.boot and birth(self.boot[0]) == self.boot[1]:
            return "the startup script runs"
        found = activity(processes(), self.first)
        if not found and self.orders.get("chips") and has_chips_in_use():
            return "a program uses the TPU"
        return found

    def tell(self) -> None:
        """Let the other machines know when something last happened here."""
        if self.orders.get("peers") and self.active > self.told:
            with contextlib.suppress(OSError):  # guest attributes may be forbidden
                self.cloud.metadata(ATTRIBUTE, f"{self.last_active():.3f}")
                self.told = self.active

    def reason(self) -> str:
        """Why this machine is to go now."""
        if self.orders.get("max_seconds"):
            if self.created is None:
                self.ask_tpu()
            if self.is_too_old():  # a TPU node may have been made anew meanwhile
                self.ask_tpu()
            because = self.is_too_old()
            if because:
                return because
        because = self.is_too_idle()
        if because and self.ask_tpu() in MAKING:  # a controller is ready long before its TPU
            self.active = time.monotonic()
        elif because and self.orders.get("peers"):
            now = self.clock.now()
            idle = min([max(0.0, now - moment) for moment in self.ask_peers()], default=now)
            self.active = max(self.active, time.monotonic() - idle)
        return because and self.is_too_idle()

    def is_too_old(self) -> str:
        return too_old(self.orders, self.clock.now(), self.beginning(), self.worker)

    def is_too_idle(self) -> str:
        return too_idle(self.orders, time.monotonic(), self.active, self.worker)

    def ask_tpu(self) -> str:
        """The TPU's state, "" when it cannot be told; when it was made is taken note of.

        As long as that is not known age counts from the start of the watch.
        """
        status, found = self.cloud.call("GET", self.orders["created"])
        if status != 200 or not found:
            return ""
        if found.get("createTime"):
            self.created = seconds_of(found["createTime"])
        return str(found.get("state", ""))

    def ask_peers(self) -> list[float]:
        """When something last happened on the stack's machines, of those that can be asked."""
        found = []
        for url in self.orders["peers"]:
            is_node = url.endswith(":getGuestAttributes")
            with contextlib.suppress(OSError):
                status, answer = self.cloud.call(
                    "POST" if is_node else "GET", url, {"queryPath": "tpuctl/"} if is_node else None
                )
                answers = answer.get("guestAttributes", [answer]) if status == 200 else []
                for one in answers:
                    for item in one.get("queryValue", {}).get("items", ()):
                        if item.get("key") == "busy":
                            found.append(float(item["value"]))
        return found

    def remove(self, because: str) -> None:
        """Delete what comes next; the machine itself last, once the others are gone."""
        for url in self.orders.get("remove", ()):
            status, found = self.cloud.call("GET", url.partition("?")[0])
            if status == 404:
                continue
            state = (found or {}).get("state") or (found or {}).get("status")
            if isinstance(state, dict):  # of a queued resource
                state = state.get("state")
            if status == 200 and state in VANISHING:
                break
            status, answer = self.cloud.call("DELETE", url)
            if status in (200, 404):
                self.say(f"deleted {url}")
                self.delay = 0.0
                break
            failure = f"{url}: HTTP {status}: {(answer or {}).get('error', {}).get('message')}"
            self.say(f"cannot delete {failure}")
            self.save(failure=failure, because=because)
            return self.back_off()
        return self.save(failure="", because=because)

    def say(self, text: str) -> None:
        print(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text, flush=True)
        with contextlib.suppress(OSError), open("/dev/console", "w", encoding="utf-8") as console:
            console.write(f"tpuctl: {text}\n")


def write(path: str, value: dict[str, Any]) -> None:
    """Write a file whole or not at all. Everybody on the machine may read it."""
    with open(path + ".part", "w", encoding="utf-8") as target:
        json.dump(value, target)
    os.chmod(path + ".part", 0o644)
    os.replace(path + ".part", path)


# Starting it --------------------------------------------------------------------------------


def own_folder() -> str:
    """Where this user's watch keeps its state: out of the way of users if it may be."""
    choices = ["/run/tpuctl"] if os.getuid() == 0 else []
    for path in [*choices, os.path.expanduser("~/.tpuctl/watch")]:
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)
            open(os.path.join(path, "lock"), "a").close()
            os.chmod(os.path.join(path, "lock"), 0o644)
            return path
    raise OSError("there is no folder for the watch's state")


def start(boot: int | None) -> None:
    """Start a watch that belongs to no session, and wait until it holds its lock."""
    folder = own_folder()
    ready, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        try:
            os.close(ready)
            os.chdir("/")
            out = os.open(
                os.path.join(folder, "watch.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
            )
            for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
                os.dup2(source, target)
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR)
            if take(lock):
                watch = Watch(folder, boot)
                watch.save(doing="")
                os.close(tell)
                watch.run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(tell)
    os.wait()
    os.read(ready, 1)  # ends when the watch closes it
    os.close(ready)


def take(lock: int) -> bool:
    """Hold a lock for the rest of this process; patient with those who only look."""
    for _ in range(50):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.02)
    return False


def become_startup_script() -> None:
    """Turn into the user's own startup script: its output and its exit are Google's to see."""
    script = None
    for _ in range(30):
        with contextlib.suppress(OSError):
            script = Cloud().attribute("tpuctl-startup-script")
            break
        time.sleep(1)
    if not script:
        return
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
        # google-startup-scripts.service): the watch stays.
        start(os.getpid())
        become_startup_script()
    else:
        print("usage: watchdog.py [start]", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
