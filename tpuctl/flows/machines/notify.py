"""Notifications that this machine rings and sends, with the user's credentials.

Machines do the same with their own account: `jobs/shipped/notifications`. The first one sends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tpuctl.cloud.caller_identity import acting_user
from tpuctl.cloud.errors import is_foreign
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Diagnostic, NotFound, RemoteFailed, TpuctlError, Usage
from tpuctl.flows.context import Context
from tpuctl.jobs.shipped.notifications import notices, outbox
from tpuctl.jobs.shipped.notifications.outbox import STATE, Delivery, Entry
from tpuctl.model.events import WarningIssued
from tpuctl.model.jobs.failures import Failure
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.plan import Action
from tpuctl.model.stack.secret_sources import secret_not_found
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.access.secret_grants import SecretGrants

MAX_SECONDS = 15.0  # for sending; what is left is sent later


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


def end_event(record: JobRecord, failure: Failure, at: datetime) -> dict[str, Any]:
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
    event = end_event(record, failure, context.cloud.server_clock.now())
    if event["event"] in notify.on:
        await _without_errors(context, [event])


async def send_unsent(context: Context) -> None:
    """Send what machines could not send before they were deleted."""
    if context.stack.file.notify is not None:
        await _without_errors(context, [])


async def _without_errors(context: Context, events: list[dict[str, Any]]) -> None:
    """No job fails because of its notifications, nor waits long for a receiver. Without access to
    the webhook's URL, machines send them later."""
    try:
        async with asyncio.timeout(MAX_SECONDS):
            await _put_and_send(context, events)
    except (TpuctlError, TimeoutError):
        return
    except Exception as error:
        if not is_foreign(error):
            raise


async def _put_and_send(context: Context, events: list[dict[str, Any]]) -> None:
    cloud, prefix = context.cloud, context.stack.names.notifications
    store = ClientStore(cloud.client("storage"), context.stack.bucket, cloud.server_clock.now)
    for event in events:
        await in_thread(outbox.put, store, prefix, event)
    _, entries = await in_thread(store.entries, f"{prefix}/")
    if outbox.unsent(prefix, entries):
        await in_thread(_deliver, store, prefix, await read_url(context), context.stack)


def _deliver(store: ClientStore, prefix: str, url: str, stack: Stack) -> Delivery:
    notify = stack.file.notify
    assert notify is not None
    return outbox.deliver(store, prefix, lambda event: notices.send(event, url, notify.format))


async def read_url(context: Context) -> str:
    """The webhook's URL. Raises NotFound or Denied."""
    source = context.stack.webhook
    assert source is not None
    client = context.cloud.client("secrets")

    def access_secret_version(request: dict[str, str], **options: Any) -> _Secret:
        return _Secret(client.access_secret_version(request, **options).payload.data)

    answer = await context.cloud.call(
        source.reference, access_secret_version, {"name": source.reference}
    )
    return answer.data.decode("utf-8", "replace").strip()


@dataclass(frozen=True)
class _Secret:
    """A secret's value, which records of calls do not contain."""

    data: bytes = field(repr=False)


# `notify test` ------------------------------------------------------------------------------


@dataclass(frozen=True)
class WebhookTest:
    """A test message that was delivered."""

    format: str
    status: int
    machines_have_access: bool | None  # to the URL's secret; None if that cannot be asked


async def send_test(context: Context) -> WebhookTest:
    """Send a test message to the webhook. Raises RemoteFailed if it was not delivered."""
    stack = context.stack
    notify, source = stack.file.notify, stack.webhook
    if notify is None or source is None:
        raise Usage(
            "No webhook",
            "the stack file has no section notify",
            hint="Store the webhook's URL, which is read from standard input, and name it there:\n"
            f"    gcloud secrets create webhook --project={stack.project} --data-file=-\n"
            "    notify: secret:webhook",
            where="notify",
        )
    try:
        url = await read_url(context)
    except NotFound:
        raise secret_not_found(source.secret, source.version) from None
    event = {
        "id": "test",
        "event": "test",
        "at": context.cloud.server_clock.now().isoformat(),
        "stack": stack.name,
        "project": stack.project,
        "zone": stack.zone,
        "detail": f"sent by {acting_user(context.cloud)}",
    }
    answer = await in_thread(notices.send, event, url, notify.format)
    if not answer.is_delivered:
        raise RemoteFailed(
            "Notification not delivered",
            f"{source.secret}: {answer.describe()}",
            hint="Check the webhook at its receiver, or store another URL:\n"
            f"    gcloud secrets versions add {source.secret.rpartition('/')[2]} "
            f"--project={source.secret.split('/')[1]} --data-file=-",
        )
    has_access = await _machines_have_access(context, source.secret)
    if has_access is False:
        context.emit(WarningIssued(_no_access(stack, source.secret)))
    return WebhookTest(notices.format_of(url, notify.format), answer.status, has_access)


async def _machines_have_access(context: Context, secret: str) -> bool | None:
    grants = SecretGrants(context.stack, context.cloud, secret)
    try:
        return grants.diff(await grants.observe()).action is Action.NOTHING
    except TpuctlError:
        return None


def _no_access(stack: Stack, secret: str) -> Diagnostic:
    return Diagnostic(
        "Machines cannot read the webhook's URL",
        f"{stack.service_account} has no access to {secret}",
        hint="Grant it, and update the machines:\n    tpuctl up",
    )
