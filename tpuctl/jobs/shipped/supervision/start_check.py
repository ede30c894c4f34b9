"""Reports which worker of a job does not arrive, and why, some time after the start.

Like `supervisor.py`, which forks it, this file is sent to workers as it is: standard library only,
Python 3.8 and later. The processes of a slice find each other at a port of the first worker, and
wait for minutes if one does not connect. Who has connected, the first worker's sockets show; why
another one has not, that worker's sockets and stacks. It puts this into the bucket, below the
attempt as `arrivals/<worker>.json`, and the first worker writes it to its log, which clients show.
While the first worker waits for the start signal, it reports what the others are doing instead.

A worker counts as missing only if another one waits for it, by its stack: jobs whose workers do
not talk to each other are not reported.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.processes import descendants, script_python
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
    from tpuctl.jobs.shipped.machine.worker_names import worker_name
    from tpuctl.jobs.shipped.tracing.stacks import Stack, read_stacks
else:
    from folder import Folder
    from processes import descendants, script_python
    from stacks import read_stacks
    from storage import Bucket, HttpError
    from worker_names import worker_name

# JAX's coordinator (before 0.8.1: 8476; jax-ml/jax#35905), PyTorch/XLA's rendezvous
# (torch_xla/_internal/rendezvous.py), torchrun's, and torch-tpu's (its launcher's 29500, and
# torch_tpu/_internal/distributed/handshake.py).
PORTS = (8482, 8476, 12355, 29400, 29500, 36423)
# Calls of libraries that wait for other processes.
WAITING = re.compile(
    r'"[^"]*/(jax/_src/(distributed|clusters/\w+)|torch/distributed/[\w/]+|torch_xla/_internal/\w+'
    r'|torch_tpu/_internal/distributed/\w+)\.py"'
)
CALL = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)')
ESTABLISHED, SYN_SENT, LISTEN = 1, 2, 10  # <net/tcp_states.h>
POLL_SECONDS = 2.0
PROBE_SECONDS = 2.0
LONGEST_SECONDS = 600.0  # after which nothing more is reported
FIRST_SECONDS = 60.0  # in which others say that they wait for the first worker
REASON_SECONDS = 12.0  # in which others say why they have not connected
MAX_REPORTED = 8  # workers
MAX_LOG_BYTES = 1 << 20
MESSAGE = "tpuctl: "
VERSIONS = """
import json
from importlib import metadata
names = ("jax", "jaxlib", "libtpu", "torch", "torch_tpu", "torch_xla", "tensorflow")
print(json.dumps({d.metadata["Name"]: d.version for d in metadata.distributions()
                  if d.metadata["Name"] in names}))
"""


class Connection:
    """A TCP socket of the job: its state, own port, and the other end."""

    def __init__(self, state: int, port: int, address: str, remote_port: int) -> None:
        self.state = state
        self.port = port
        self.address = address
        self.remote_port = remote_port


class StartCheck:
    """Watches the start of one attempt on one worker."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.bucket = Bucket(spec["bucket"])
        self.prefix: str = spec["prefix"]
        self.barrier: dict[str, Any] = spec["start_barrier"]
        self.workers: list[int] = self.barrier["workers"]
        self.worker: int = spec["worker"]
        self.first = self.workers[0]
        self.supervisor = os.getppid()
        self.began = time.monotonic()
        self.job_parent = 0
        self.addresses: list[str] = self.barrier.get("addresses") or []
        self.python = ""  # of the script, and its environment variables
        self.variables: dict[str, str] = {}
        self.ports = list(PORTS)

    def run(self) -> None:
        if (self.folder.read("record.json") or {}).get("state") == "ready":
            self.report_unready()
            return
        job_parent = self.folder.job_parent()
        if job_parent is None:
            return
        self.job_parent = job_parent
        self.python, self.variables = script_python(self.job_parent)
        configured = (
            self.variables.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[2],
            self.variables.get("JAX_COORDINATOR_PORT", ""),
            self.variables.get("MASTER_PORT", ""),
        )
        self.ports = [*map(int, filter(str.isdigit, configured)), *PORTS]
        if max(self.workers) >= len(self.addresses):
            return  # the workers do not wait for each other
        if self.worker == self.first:
            self.watch_first()
        else:
            self.watch_other()

    def name(self, worker: int) -> str:
        return worker_name(self.spec, worker)

    def is_needed(self, seconds: float) -> bool:
        """Whether the job still runs, and less time has passed."""
        is_alive = os.getppid() == self.supervisor and self.folder.read("exit.json") is None
        return is_alive and time.monotonic() - self.began < seconds

    # Before the start ------------------------------------------------------------------------

    def report_unready(self) -> None:
        """Report what the workers do that are not ready to start."""
        missing = (self.folder.read("missing.json") or {}).get("workers") or []
        for worker in missing[:MAX_REPORTED]:
            with contextlib.suppress(OSError, HttpError):
                self.folder.log(f"waiting for worker {self.name(worker)}: {self.activity(worker)}")
        if len(missing) > MAX_REPORTED:
            self.folder.log(f"waiting for {len(missing) - MAX_REPORTED} more workers")

    def activity(self, worker: int) -> str:
        """What a worker does, by the last of its supervisor's messages in the bucket."""
        name = f"{self.prefix}/worker-{worker}"
        if self.bucket.read(f"{name}.json") is None:
            return "it has not reported yet"
        if self.bucket.stat(f"{name}.log")[0]:
            path = self.bucket.object(f"{name}.log")
            with self.bucket.open("GET", path, alt="media") as response:
                lines = response.read(MAX_LOG_BYTES).decode("utf-8", "replace").splitlines()
            messages = [line[len(MESSAGE) :] for line in lines if line.startswith(MESSAGE)]
            if messages:
                return str(messages[-1])
        return "it prepares the job"

    # The first worker -----------------------------------------------------------------------

    def watch_first(self) -> None:
        has_reported = False
        while self.is_needed(LONGEST_SECONDS):
            port, arrived = self.arrivals()
            missing = [worker for worker in self.workers[1:] if worker not in arrived]
            if port and not missing:
                if has_reported:
                    self.folder.log("all workers have arrived")
                return
            if not has_reported:
                with contextlib.suppress(OSError, HttpError):
                    has_reported = self.report_others(missing, port) if port else self.report_this()
            if not port and not has_reported and not self.is_needed(FIRST_SECONDS):
                return
            time.sleep(POLL_SECONDS)

    def arrivals(self) -> tuple[int, list[int]]:
        """The port at which this worker's processes wait, 0 if none; and who has connected."""
        connections = list(self.connections())
        listening = {connection.port for connection in connections if connection.state == LISTEN}
        port = next((port for port in self.ports if port in listening), 0)
        connected = {
            connection.address
            for connection in connections
            if connection.state == ESTABLISHED and connection.port == port
        }
        return port, [worker for worker in self.workers if self.addresses[worker] in connected]

    def report_others(self, missing: list[int], port: int) -> bool:
        """Report the missing workers, if this one waits for them."""
        names = [f"{self.prefix}/arrivals/{worker}.json" for worker in missing]
        known = set(self.bucket.names(f"{self.prefix}/arrivals/"))
        if not known.issuperset(names) and self.is_needed(REASON_SECONDS):
            return False
        stacks = read_stacks(self.job_parent)
        if stacks and not is_waiting(stacks):
            return False
        versions = self.versions()
        for worker in missing[:MAX_REPORTED]:
            reason = self.reason(worker, port, versions)
            self.folder.log(f"worker {self.name(worker)} has not arrived: {reason}")
        if len(missing) > MAX_REPORTED:
            self.folder.log(f"{len(missing) - MAX_REPORTED} more workers have not arrived")
        return True

    def reason(self, worker: int, port: int, versions: dict[str, str]) -> str:
        """Why a worker has not connected, by its own report or its record."""
        arrival = self.bucket.read(f"{self.prefix}/arrivals/{worker}.json")
        record = self.bucket.read(f"{self.prefix}/worker-{worker}.json") or {}
        if record.get("exit_code") is not None:
            return f"its script has ended with exit code {record['exit_code']}"
        if arrival is None:
            return f"it has not connected to worker {self.name(self.first)}, port {port}"
        reason: str = arrival["reason"]
        differing = [
            f"{name} {version} instead of {versions[name]}"
            for name, version in arrival["versions"].items()
            if versions.get(name, version) != version
        ]
        return "; ".join([reason, *(["it has " + ", ".join(differing)] if differing else [])])

    def report_this(self) -> bool:
        """Report that this worker is the missing one, if others wait for it."""
        names = list(self.bucket.names(f"{self.prefix}/arrivals/"))
        arrivals = [self.bucket.read(name) for name in names[:MAX_REPORTED]]
        if not any(arrival is not None and arrival["is_waiting"] for arrival in arrivals):
            return False
        stacks = read_stacks(self.job_parent)
        self.log_stacks(
            f"worker {self.name(self.worker)} has not arrived: the others wait for it; "
            f"{place(stacks)}",
            stacks,
        )
        return True

    # Another worker -------------------------------------------------------------------------

    def watch_other(self) -> None:
        name = f"{self.prefix}/arrivals/{self.worker}.json"
        arrival: dict[str, Any] | None = None
        while self.is_needed(LONGEST_SECONDS) and not self.has_arrived():
            if arrival is None:
                arrival = self.explain_absence()
                if arrival is not None:
                    with contextlib.suppress(OSError, HttpError):
                        self.bucket.put(name, json.dumps(arrival).encode())
            time.sleep(POLL_SECONDS)

    def to_first(self) -> list[Connection]:
        return [
            connection
            for connection in self.connections()
            if connection.address == self.addresses[self.first]
            and connection.remote_port in self.ports
        ]

    def has_arrived(self) -> bool:
        return any(peer.state == ESTABLISHED for peer in self.to_first())

    def explain_absence(self) -> dict[str, Any] | None:
        """Why this worker has not connected to the first; None if it may need no connection."""
        dropped = [peer.remote_port for peer in self.to_first() if peer.state == SYN_SENT]
        stacks = read_stacks(self.job_parent)
        waits = is_waiting(stacks)
        ports_to_probe = [] if dropped else self.ports
        answers = {port: probe(self.addresses[self.first], port) for port in ports_to_probe}
        if dropped or (waits and "timeout" in answers.values()):
            ports = dropped or [port for port, answer in answers.items() if answer == "timeout"]
            reason = (
                f"its connections to worker {self.name(self.first)}, port {ports[0]}, are not "
                "answered, as if a firewall drops them. TCP must be open between the workers: "
                "tpuctl up creates "
                f"rule {self.barrier['rule']} for that in a network of its own; for another "
                "network, tpuctl plan shows the command"
            )
            self.folder.log(reason.replace("its", "this worker's", 1))
        elif "open" in answers.values():
            reason = place(stacks)
            self.log_stacks(f"worker {self.name(self.first)} waits for this worker", stacks)
        elif waits:
            reason = f"it waits for worker {self.name(self.first)}, which does not listen"
        else:
            return None
        return {"reason": reason, "is_waiting": waits, "versions": self.versions()}

    # Both -----------------------------------------------------------------------------------

    def connections(self) -> Iterator[Connection]:
        """The TCP sockets of the job's processes."""
        inodes = set()
        for pid in descendants(self.job_parent):
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as file:
                for line in list(file)[1:]:
                    fields = line.split()
                    if f"socket:[{fields[9]}]" in inodes:
                        _, port = parse_address(fields[1])
                        yield Connection(int(fields[3], 16), port, *parse_address(fields[2]))

    def versions(self) -> dict[str, str]:
        """The versions of frameworks that the job sees."""
        import subprocess  # it takes a while to load

        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            argv = [self.python, "-c", VERSIONS]
            output = subprocess.check_output(
                argv, env=self.variables, stdin=subprocess.DEVNULL, timeout=20
            )
            return dict(json.loads(output))
        return {}

    def log_stacks(self, message: str, stacks: list[Stack]) -> None:
        self.folder.log("\n".join([message, *(f"tpuctl: {stack.text}" for stack in stacks)]))


def parse_address(text: str) -> tuple[str, int]:
    """An address and port of /proc/net/tcp, whose words have the machine's byte order."""
    words, _, port = text.partition(":")
    return socket.inet_ntoa(bytes.fromhex(words[-8:])[::-1]), int(port, 16)


def probe(address: str, port: int) -> str:
    """Whether a port is "open" or "closed", or does not answer: "timeout"."""
    with socket.socket() as client:
        client.settimeout(PROBE_SECONDS)
        try:
            client.connect((address, port))
        except ConnectionError:
            return "closed"
        except OSError:
            return "timeout"
    return "open"


def is_waiting(stacks: list[Stack]) -> bool:
    """Whether a process waits for those of other workers."""
    return any(WAITING.search(call) for stack in stacks for call in stack.calls)


def place(stacks: list[Stack]) -> str:
    """Where the script is, by the innermost call of the job's own code."""
    calls = [match for stack in stacks for match in map(CALL.match, stack.calls) if match]
    code = [match for match in calls if "/code/" in match["file"]]
    if not calls:
        return "where its script is, is unknown: it is no Python script, or ignores PYTHONPATH"
    call = (code or calls)[0]
    file = call["file"].rpartition("/code/")[2]
    return f"its script is at line {call['line']} of {file}, in {call['name']}"


def main(arguments: list[str]) -> int:
    (path,) = arguments
    folder = Folder(path)
    spec = folder.read("spec.json")
    assert spec is not None
    StartCheck(folder, spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
