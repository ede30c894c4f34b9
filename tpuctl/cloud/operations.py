"""Waits for long-running operations of every API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.cloud.classification import classify
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.errors import from_status
from tpuctl.errors import NotFound, TpuctlError
from tpuctl.google_imports import compute_types
from tpuctl.model.troubleshooting.known_errors import extract_facts
from tpuctl.polling import Backoff, wait_until

# Detects completion at most 10% late, and never by more than 2 seconds.
POLL = Backoff(initial=0.05, maximum=2.0, multiplier=1.1)


async def long_operation(
    cloud: Cloud, client: str, operation: Any, *, subject: str, seconds: float
) -> None:
    """Wait for a `google.longrunning` operation; raises its error.

    Only the name, `done` and `error` are read. An operation that no longer exists counts as done:
    the caller checks the resource itself afterwards.
    """
    name = operation.name
    if operation.done:
        _raise_if_failed(operation, subject, cloud)
        return

    async def probe() -> bool | None:
        try:
            now = await cloud.call(subject, cloud.client(client).get_operation, {"name": name})
        except NotFound:
            return True
        if not now.done:
            return None
        _raise_if_failed(now, subject, cloud)
        return True

    await wait_until(probe, description=subject, seconds=seconds, backoff=POLL, clock=cloud.clock)


def _raise_if_failed(operation: Any, subject: str, cloud: Cloud) -> None:
    if operation.HasField("error"):
        facts = {**cloud.hint_facts, **extract_facts(operation.name, project=cloud.project)}
        cause = RuntimeError(f"operation {operation.name} ended with {operation.error}".rstrip())
        raise from_status(operation.error, subject, facts) from cause


async def compute_operation(cloud: Cloud, operation: Any, *, subject: str, seconds: float) -> None:
    """Wait for a zonal, regional or global Compute Engine operation by the server's long poll."""
    done = compute_types().Operation.Status.DONE
    links = {"zone": operation.zone, "region": operation.region}
    location = {kind: link.rpartition("/")[2] for kind, link in links.items() if link}
    scope = next(iter(location), "global")

    async def probe() -> Any | None:
        now = await cloud.call(
            subject,
            cloud.client(f"{scope}_operations").wait,
            project=cloud.project,
            operation=operation.name,
            timeout=150.0,
            only_waits=True,
            **location,
        )
        return now if now.status == done else None

    result = operation
    if operation.status != done:
        result = await wait_until(
            probe, description=subject, seconds=seconds, backoff=POLL, clock=cloud.clock
        )
    if result.error.errors:
        first = result.error.errors[0]
        if first.code == "RESOURCE_NOT_FOUND" and result.operation_type == "delete":
            return  # deleted by another caller meanwhile
        cause = RuntimeError(f"operation {operation.name} ended with {result.error}".rstrip())
        raise compute_error(first, cloud, subject, location) from cause
    if result.http_error_status_code >= 400:
        text = f"{result.http_error_status_code} {result.http_error_message}"
        raise classify("UNKNOWN", text, subject=subject, has_ended=True, facts=cloud.hint_facts)


def compute_error(
    error: Any, cloud: Cloud, subject: str, location: Mapping[str, str]
) -> TpuctlError:
    """The error for an entry of an `errors` list, of an operation or a managed instance."""
    return classify(
        "UNKNOWN",
        f"{error.code}: {error.message}",
        subject=subject,
        reasons=(error.code,),
        has_ended=True,
        facts={**cloud.hint_facts, "project": cloud.project, **location},
    )
