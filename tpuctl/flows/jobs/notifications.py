"""Notifications that this machine rings and sends, with the user's credentials.

Machines do the same with their own account: `jobs/shipped/notifications`. Whoever is first sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tpuctl.cloud.errors import is_foreign
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import TpuctlError
from tpuctl.flows.context import Context
from tpuctl.jobs.shipped.notifications import notices, outbox
from tpuctl.jobs.shipped.notifications.outbox import STATE, Delivery, Entry
from tpuctl.model.jobs.failures import Failure
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.stack.stack import Stack


class ClientStore:
    """The outbox's objects, with Google's client. See `outbox.Store`."""

    def __init__(self, client: Any, bucket: str, now: Callable[[], datetime]) -> None:
        self.bucket = client.bucket(bucket)
        self.now = now

    def entries(self, prefix: str) -> tuple[float, list[Entry]]:
        entries = [
            Entry(
                blob.name,
                int(blob.generation),
                blob.time_created.timestamp(),
                (blob.metadata or {}).get(STATE, ""),
            )
            for blob in self.bucket.list_blobs(prefix=prefix)
        ]
        return self.now().timestamp(), entries

    def create(self, name: str, text: bytes, generation: int) -> int | None:
        from google.api_core.exceptions import PreconditionFailed

        blob = self.bucket.blob(name)
        try:
            blob.upload_from_string(
                text, content_type="application/json", if_generation_match=generation
            )
        except PreconditionFailed:
            return None
        return int(blob.generation)

    def read(self, name: str, generation: int) -> Any:
        from google.api_core.exceptions import NotFound

        try:
            return json.loads(self.bucket.blob(name, generation=generation).download_as_bytes())
        except NotFound:
            return None

    def mark(self, name: str, state: str) -> None:
        blob = self.bucket.blob(name)
        blob.metadata = {STATE: state}
        blob.patch()

    def delete(self, name: str) -> None:
        self.bucket.delete_blobs([name], on_error=lambda _: None)


def end_event(record: JobRecord, failure: Failure, at: datetime, stack: Stack) -> dict[str, Any]:
    """What the machines of a failed attempt would have rung, had they known why it ended."""
    where = f"--stack {record.stack} --project {record.project}"
    return {
        "id": f"{record.id}.{record.attempt}.end",
        "event": "preempted" if failure.kind == "preemption" else "failed",
        "at": at.isoformat(),
        "stack": record.stack,
        "project": record.project,
        "zone": record.zone,
        "job": record.id,
        "attempt": record.attempt,
        "detail": failure.cause,
        "command": f"tpuctl explain {record.id} {where}",
    }


async def ring_end(context: Context, record: JobRecord, failure: Failure) -> None:
    """Ring for the end of a failed attempt, unless its machines did, and send what is unsent."""
    notify = context.stack.file.notify
    if notify is None or failure.kind == "ended":  # as the user wanted, or the watchdog rang
        return
    event = end_event(record, failure, context.cloud.server_clock.now(), context.stack)
    if event["event"] in notify.on:
        await _without_errors(context, [event])


async def send_unsent(context: Context) -> None:
    """Send what machines could not send before they were deleted."""
    if context.stack.file.notify is not None:
        await _without_errors(context, [])


async def _without_errors(context: Context, events: list[dict[str, Any]]) -> None:
    """No job fails because of its notifications; without access to the webhook's URL, machines
    send them later."""
    try:
        store = ClientStore(
            context.cloud.client("storage"), context.stack.bucket, context.cloud.server_clock.now
        )
        prefix = context.stack.names.notifications
        for event in events:
            await in_thread(outbox.put, store, prefix, event)
        url = await read_url(context)
        await in_thread(_deliver, store, prefix, url, context.stack)
    except TpuctlError:
        return
    except Exception as error:
        if not is_foreign(error):
            raise


def _deliver(store: ClientStore, prefix: str, url: str, stack: Stack) -> Delivery:
    notify = stack.file.notify
    assert notify is not None
    return outbox.deliver(store, prefix, lambda event: notices.send(event, url, notify.format))


async def read_url(context: Context) -> str:
    """The webhook's URL. Raises NotFound or Denied."""
    source = context.stack.webhook
    assert source is not None
    answer = await context.cloud.call(
        source.reference,
        context.cloud.client("secrets").access_secret_version,
        {"name": source.reference},
    )
    return str(answer.payload.data.decode("utf-8", "replace")).strip()
