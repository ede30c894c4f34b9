"""The request body of a queued resource, and what can be read from an existing one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from google.longrunning import operations_pb2

from tpuctl.cloud.clients import Cloud
from tpuctl.model.stack.schema import QueueSection
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.duration import DURATION, seconds_of
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.resources.tpu.tpu_node_spec import capacity_differences, encrypted, node_differences
from tpuctl.units import format_duration

# (up to, rounded to) seconds: reported waiting times are rounded, to limit progress output.
ROUNDING_STEPS = ((600.0, 60.0), (7200.0, 600.0), (86400.0, 1800.0), (float("inf"), 7200.0))


def request_body(stack: Stack, node: dict[str, Any]) -> dict[str, Any]:
    """The fields of the v2 queued resource for the stack's identical nodes.

    The tiers are mutually exclusive, and replace a node's `scheduling_config`. `-` requests any
    reservation in the zone, like gcloud's `--reserved` in API v2
    (command_lib/compute/tpus/queued_resources/util.py of SDK 528).
    """
    queue, capacity = stack.queue or QueueSection(), stack.file.tpu.capacity
    parent = f"projects/{stack.project}/locations/{stack.zone}"
    plain = {key: value for key, value in node.items() if key != "scheduling_config"}
    spec: dict[str, Any] = {"parent": parent, "node": plain}
    if len(stack.nodes) == 1:
        spec["node_id"] = stack.nodes[0]
    else:
        count, prefix = len(stack.nodes), stack.names.node
        spec["multislice_params"] = {"node_count": count, "node_id_prefix": prefix}
    body: dict[str, Any] = {"tpu": {"node_spec": [spec]}}
    if stack.is_spot:
        body["spot"] = {}
    elif queue.guaranteed:
        body["guaranteed"] = {}
    if capacity == "reserved":
        body["reservation_name"] = _reservation_name(stack)
    if policy := queueing_policy(stack):
        body["queueing_policy"] = policy
    return body


def _reservation_name(stack: Stack) -> str:
    name = stack.file.tpu.reservation or (stack.queue or QueueSection()).reservation or "-"
    project, _, name = name.removeprefix("projects/").rpartition("/reservations/")
    return f"projects/{project or stack.project}/locations/{stack.zone}/reservations/{name}"


def queueing_policy(stack: Stack) -> dict[str, Any]:
    """Until when the request is valid; empty for without a deadline."""
    valid_until = (stack.queue or QueueSection()).valid_until
    if valid_until is None:
        return {}
    if re.fullmatch(DURATION, valid_until):
        return {"valid_until_duration": timedelta(seconds=seconds_of(valid_until))}
    return {"valid_until_time": datetime.fromisoformat(valid_until)}


class CreateQueuedResource:
    """The call that creates the queued resource. Idempotent, by its `request_id`."""

    def __init__(self, stack: Stack, cloud: Cloud, body: dict[str, Any]) -> None:
        self.stack = stack
        self.cloud = cloud
        self.body = body
        self.id = str(uuid4())

    async def __call__(self) -> Any:
        """Returns the operation that ends once the request is queued or rejected."""
        name, subject = self.stack.names.queued, f"queued/{self.stack.names.queued}"
        parent = f"projects/{self.stack.project}/locations/{self.stack.zone}"
        is_flex_start = self.stack.file.tpu.capacity == "flex-start"
        if not is_flex_start and self.stack.crypto_key is None:
            fields = {
                "parent": parent,
                "queued_resource_id": name,
                "queued_resource": self.body,
                "request_id": self.id,
            }
            client = self.cloud.client("tpu")
            operation = await self.cloud.call(subject, client.create_queued_resource, fields)
            return operation.operation
        response = await self.cloud.call(
            subject,
            self.cloud.client("rest").call,
            "POST",
            "tpu",
            f"/{'v2alpha1' if is_flex_start else 'v2'}/{parent}/queuedResources",
            query={"queuedResourceId": name, "requestId": self.id},
            body=self._flex_start() if is_flex_start else self._json(),
        )
        return operations_pb2.Operation(name=response["name"])

    def _json(self) -> dict[str, Any]:
        """The request in the JSON of v2, with the key of the boot disks."""
        from google.cloud.tpu_v2.types import QueuedResource
        from google.protobuf.json_format import MessageToDict

        request: dict[str, Any] = MessageToDict(QueuedResource.pb(QueuedResource(self.body)))
        if self.stack.crypto_key is not None:
            for spec in request["tpu"]["nodeSpec"]:
                spec["node"] = encrypted(self.stack, spec["node"])
        return request

    def _flex_start(self) -> dict[str, Any]:
        """The request in the JSON of v2alpha1, whose Python client lacks two of the fields.

        They are in Google's discovery document, included in the Google Cloud SDK 528
        (generated_clients/apis/tpu/v2alpha1/tpu_v2alpha1_messages.py), as is `multiNodeParams`, the
        name for what API v2 calls `multisliceParams`.
        """
        request = self._json()
        for spec in request["tpu"]["nodeSpec"]:
            if "multisliceParams" in spec:
                spec["multiNodeParams"] = spec.pop("multisliceParams")
        queue = self.stack.queue
        assert queue is not None and queue.run_for is not None, "required by the stack file's rules"
        seconds = int(seconds_of(queue.run_for))
        return {
            **request,
            "provisioningModel": "FLEX_START",
            "runDuration": {"maxRunDuration": f"{seconds}s"},
        }


def owner(queued: Any) -> str:
    """The stack that owns the request, by the label of its nodes: requests have no labels."""
    specs = list(queued.tpu.node_spec)
    return str(specs[0].node.labels.get(STACK_LABEL, "")) if specs else ""


def request_differences(stack: Stack, queued: Any) -> Iterator[tuple[str, str, str]]:
    """Differences that cannot be updated, as (field, actual, desired).

    A request for several nodes is returned with one specification per node.
    """
    specs = list(queued.tpu.node_spec)
    count = sum(spec.multislice_params.node_count or 1 for spec in specs)
    if count != len(stack.nodes):
        yield "number of nodes", str(count), str(len(stack.nodes))
    for spec in specs[:1]:
        yield from node_differences(stack, spec.node)
    yield from capacity_differences(stack, "spot" in queued)


def deadline(queued: Any) -> datetime | None:
    """When the request expires; None for never."""
    policy = queued.queueing_policy
    if "valid_until_time" in policy:
        return _datetime(policy.valid_until_time)
    if "valid_until_duration" in policy:
        return _datetime(queued.create_time) + timedelta(
            seconds=policy.valid_until_duration.total_seconds()
        )
    return None


def waited_seconds(queued: Any, now: datetime | None = None) -> float:
    """How long ago the request was created; the clocks may differ."""
    age = (now or datetime.now(UTC)) - _datetime(queued.create_time)
    return max(0.0, age.total_seconds())


def waiting_text(queued: Any, now: datetime | None = None) -> str:
    """Its state, with the waiting time and deadline: `WAITING_FOR_RESOURCES for 3 min`."""
    state = str(queued.state.state.name)
    if state not in ("ACCEPTED", "WAITING_FOR_RESOURCES"):
        return state
    waited = waited_seconds(queued, now)
    step = next(step for limit, step in ROUNDING_STEPS if waited < limit)
    rounded = waited // step * step
    text = f"{state} for {format_duration(rounded)}" if rounded >= 60 else state
    until = deadline(queued)
    return text if until is None else f"{text}, until {until.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _datetime(value: Any) -> datetime:
    """Convert an API timestamp with nanoseconds."""
    return datetime.fromtimestamp(value.timestamp(), UTC)
