"""Rings when something happens to a job or a machine, and sends what rang to the user's webhook.

Like `supervisor.py`, this file is sent to workers as it is: standard library only, Python 3.8 and
later. The uploader of a job forks it with the attempt's folder. The watchdog runs it as
`python3 -S -I bell.py`, with its settings and what it knows on stdin, and what `use_network` reads
in `network.json`. The settings are those of `notify` in the stack file; the webhook's URL is a
secret, which is read from Secret Manager with the machine's account each time, and written nowhere.
"""

from __future__ import annotations

import datetime
import http.client
import json
import os
import sys
import time
from email.utils import parsedate_to_datetime

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(HERE)
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.downloads.secret_fetch import Failure, Refused, Transient, access
    from tpuctl.jobs.shipped.machine.clock import now
    from tpuctl.jobs.shipped.machine.folder import ENDED, Folder
    from tpuctl.jobs.shipped.machine.forked import Process, fork_program
    from tpuctl.jobs.shipped.machine.network_variables import use_network
    from tpuctl.jobs.shipped.machine.storage import (
        Account,
        Bucket,
        HttpError,
        metadata,
        unless_missing,
    )
    from tpuctl.jobs.shipped.notifications import notices
    from tpuctl.jobs.shipped.notifications.outbox import STATE, Delivery, Entry, deliver, put
else:
    import notices
    from clock import now
    from folder import ENDED, Folder
    from forked import Process, fork_program
    from network_variables import use_network
    from outbox import STATE, Delivery, Entry, deliver, put
    from secret_fetch import Failure, Refused, Transient, access
    from storage import Account, Bucket, HttpError, metadata, unless_missing

DELIVERY_SECONDS = 180.0  # for which a process tries to send; later ones continue
RING_DELAYS = (0.5, 1.0)  # seconds between tries to put an event into the outbox
NEW_SECONDS = 86400.0  # machines that are older were reported long ago, or never
FIELDS = "items(name,generation,timeCreated,metadata),nextPageToken"


class BucketStore:
    """The outbox's objects, in the machine's bucket. See `outbox.Store`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def entries(self, prefix: str) -> tuple[float, list[Entry]]:
        query: dict[str, Any] = {"prefix": prefix, "fields": FIELDS}
        entries: list[Entry] = []
        while True:
            with self.bucket.open("GET", f"/storage/v1/b/{self.bucket.name}/o", **query) as answer:
                date = parsedate_to_datetime(answer.headers["Date"])
                page = json.load(answer)
            entries += map(entry_of, page.get("items", ()))
            if not page.get("nextPageToken"):
                return date.timestamp(), entries
            query["pageToken"] = page["nextPageToken"]

    def create(self, name: str, text: bytes, generation: int) -> int | None:
        try:
            return self.bucket.put(name, text, ifGenerationMatch=generation)
        except HttpError as error:
            if error.code != 412:
                raise
            return None

    def read(self, name: str, generation: int) -> Any:
        path = self.bucket.object(name)
        return unless_missing(
            lambda: self.bucket.call("GET", path, alt="media", generation=generation)
        )

    def mark(self, name: str, state: str) -> None:
        body = json.dumps({"metadata": {STATE: state}}).encode()
        unless_missing(lambda: self.bucket.call("PATCH", self.bucket.object(name), body))

    def delete(self, name: str) -> None:
        self.bucket.delete(name)


def entry_of(item: dict[str, Any]) -> Entry:
    state = (item.get("metadata") or {}).get(STATE, "")
    created = datetime.datetime.strptime(item["timeCreated"], "%Y-%m-%dT%H:%M:%S.%f%z")
    return Entry(item["name"], int(item["generation"]), created.timestamp(), state)


def send_pending(settings: dict[str, Any], bucket: Bucket) -> Delivery:
    """Send what is in the outbox, as far as possible now. Raises OSError if the bucket fails."""
    url: list[str] = []

    def send(event: dict[str, Any]) -> notices.Answer:
        try:
            if not url:
                url.append(access(Account(), settings["secret"]).decode().strip())
        except (Failure, Refused, Transient, ValueError) as error:
            problem = "not text" if isinstance(error, ValueError) else str(error)
            return notices.Answer(0, f"the webhook's URL cannot be read: {problem}")
        return notices.send(event, url[0], settings["format"])

    return deliver(BucketStore(bucket), settings["prefix"], send)


def ring(settings: dict[str, Any], bucket: Bucket, event: dict[str, Any]) -> bool:
    """Put an event into the outbox, unless it is there; returns whether that succeeded."""
    names = ("stack", "project", "zone")
    event = {**event, **{name: settings[name] for name in names}}
    for delay in (*RING_DELAYS, None):
        try:
            put(BucketStore(bucket), settings["prefix"], event)
            return True
        except OSError as error:
            print(f"cannot write notification {event['id']}: {error}", file=sys.stderr)
            if delay is not None:
                time.sleep(delay)
    return False


# Jobs ---------------------------------------------------------------------------------------


def event_of(record: dict[str, Any], spec: dict[str, Any], is_first_end: bool) -> dict[str, Any]:
    """The event that a worker's record stands for; empty if there is none.

    `is_first_end`: whether this worker's failure was the first.
    """
    state, worker = record["state"], spec["worker"]
    is_first = worker == min(workers_of(spec))
    hang = record.get("hang") or {}
    if state == "succeeded":
        return {"id": "end", "event": "ended"}
    if state in ENDED:
        kind = "failed" if state in ("failed", "timed_out", "lost") and is_first_end else ""
        return {"id": "end", "event": kind, "detail": record["detail"]} if kind else {}
    if state == "running" and hang.get("worker") == worker:
        return {"id": "hung", "event": "hung", "detail": hang["detail"]}
    if state == "running" and is_first and record["attempt"] > 1:
        return {"id": "recovered", "event": "recovered"}
    return {}


def workers_of(spec: dict[str, Any]) -> list[int]:
    """The workers of the job."""
    return (spec.get("start_barrier") or {}).get("workers") or [spec["worker"]]


class JobBell:
    """Rings for one attempt on one worker; processes of their own send, so that the job's log and
    record never wait for a receiver."""

    def __init__(self, folder: str, spec: dict[str, Any], bucket: Bucket) -> None:
        self.folder = folder
        self.spec = spec
        self.bucket = bucket
        self.settings: dict[str, Any] = spec.get("notify") or {}
        self.rung: set[str] = set()
        self.delivered = 0  # how many of these are known to have been sent
        self.sender: Process | None = None
        self.sender_rings = 0  # how many it was started for
        self.has_ended = False

    def update(self, record: dict[str, Any], *, is_first_end: bool = False) -> None:
        """Ring if something happened; called before the record is in the bucket, or after it for an
        end that other workers share.

        `is_first_end` is as for `event_of`.
        """
        if not self.settings:
            return
        event = event_of(record, self.spec, is_first_end)
        if self.is_shared_end(record) and not self.have_others_succeeded():
            event = {}  # the last one rings; two at the same time ring as one
        if event and event["id"] not in self.rung and self.is_news(record, event):
            self.ring(record, event)
        self.has_ended = record["state"] in ENDED

    def is_shared_end(self, record: dict[str, Any]) -> bool:
        """Whether the job has ended once other workers have succeeded, too."""
        return record["state"] == "succeeded" and len(workers_of(self.spec)) > 1

    def have_others_succeeded(self) -> bool:
        others = [worker for worker in workers_of(self.spec) if worker != self.spec["worker"]]
        prefix = self.spec["prefix"]
        records = (self.bucket.read(f"{prefix}/worker-{worker}.json") for worker in others)
        return all((record or {}).get("state") == "succeeded" for record in records)

    def send(self) -> None:
        """Let a process send what rang; the last one continues after the end of this process."""
        if self.sender is not None and self.sender.poll() is not None:
            self.delivered = self.sender_rings if self.sender.poll() == 0 else self.delivered
            self.sender = None
        if len(self.rung) > self.delivered and (self.sender is None or self.has_ended):
            self.sender_rings = len(self.rung)
            self.sender = fork_program("bell", self.folder)

    def ring(self, record: dict[str, Any], event: dict[str, Any]) -> None:
        event["at"] = record["finished"] or now()
        job, attempt = record["job"], record["attempt"]
        command = "logs" if event["event"] in ("ended", "recovered") else "explain"
        fields = {
            "id": f"{job}.{attempt}.{event['id']}",
            "job": job,
            "attempt": attempt,
            "exit_code": record["exit_code"],
            "cost": cost(self.settings, seconds_between(record["started"], event["at"])),
            "command": command_line(self.settings, f"{command} {job}"),
        }
        if ring(self.settings, self.bucket, {**event, **fields}):
            self.rung.add(event["id"])

    def is_news(self, record: dict[str, Any], event: dict[str, Any]) -> bool:
        """Whether the user wants to know. Decides what the shutdown of a machine means."""
        if record["cause"] == "terminated":
            if is_preempted():
                event["event"], event["detail"] = "preempted", ""
            elif self.was_taken_down():
                return False
        return event["event"] in self.settings["on"]

    def was_taken_down(self) -> bool:
        """Whether `down` has run since the attempt was started."""
        try:
            contents = self.bucket.read(self.settings["stack_record"])
            count = contents["down_count"] if contents else None
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return bool(count != self.settings["down_count"])


def is_preempted() -> bool:
    """Whether Google takes this machine away now
    (cloud.google.com/compute/docs/instances/create-use-preemptible)."""
    try:
        return metadata("instance/preempted", timeout=5) == b"TRUE"
    except (OSError, http.client.HTTPException):
        return False


def command_line(settings: dict[str, Any], command: str) -> str:
    """The command as a user types it, from any folder."""
    is_local = os.environ.get("GCE_METADATA_HOST", "").startswith("127.")
    where = "--stack {stack} --project {project}".format(**settings)
    return f"tpuctl {'--cloud local ' if is_local else ''}{command} {where}"


def seconds_between(begin: str, end: str) -> float:
    parse = datetime.datetime.fromisoformat
    return max(0.0, (parse(end) - parse(begin)).total_seconds())


def cost(settings: dict[str, Any], seconds: float) -> float | None:
    """Dollars for all machines of the stack."""
    hourly = settings.get("hourly")
    return None if hourly is None else round(hourly * seconds / 3600, 2)


# Machines -----------------------------------------------------------------------------------


def machine_events(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What the watchdog knows: `created`, `now`, and the `limit` that was reached, if any."""
    created, at = settings.get("created"), settings["now"]
    if created is None:
        return []
    mark = datetime.datetime.fromtimestamp(created, datetime.timezone.utc).strftime("%Y%m%d%H%M%S")
    event = {
        "at": datetime.datetime.fromtimestamp(at, datetime.timezone.utc).isoformat(),
        "command": command_line(settings, "status"),
    }
    events = []
    if at - created < NEW_SECONDS and not settings.get("limit"):
        detail = f"{settings['type']} in {settings['zone']}"
        events = [{**event, "id": f"{mark}.granted", "event": "granted", "detail": detail}]
    if settings.get("limit"):
        limit, total = settings["limit"], cost(settings, at - created)
        fields = {"id": f"{mark}.limit", "event": "limit", "detail": limit, "cost": total}
        events.append({**event, **fields})
    return [event for event in events if event["event"] in settings["on"]]


def send_for_seconds(settings: dict[str, Any], seconds: float) -> int:
    """Send what rang, with retries; the exit code says whether all of it was sent."""
    bucket = Bucket(settings["bucket"])
    deadline = time.monotonic() + seconds
    while True:
        try:
            delivery = send_pending(settings, bucket)
        except (OSError, ValueError, LookupError) as error:
            delivery = Delivery(left=1, wait=5.0, problem=f"the bucket: {error}")
        if not delivery.left:
            return 0
        print(f"{delivery.left} notifications are unsent: {delivery.problem}", file=sys.stderr)
        if time.monotonic() + delivery.wait >= deadline:
            return 1
        time.sleep(delivery.wait)


def main(arguments: list[str]) -> int:
    if arguments:
        spec = Folder(arguments[0]).read("spec.json")
        assert spec is not None
        return send_for_seconds({**spec["notify"], "bucket": spec["bucket"]}, DELIVERY_SECONDS)
    with open(os.path.join(HERE, "network.json"), encoding="utf-8") as file:
        use_network(json.load(file), HERE)
    settings = json.load(sys.stdin)
    bucket = Bucket(settings["bucket"])
    has_rung = True
    for event in machine_events(settings):
        has_rung = ring(settings, bucket, event) and has_rung
    send_for_seconds(settings, 0.0)
    return 0 if has_rung else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
