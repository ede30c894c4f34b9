"""The whole life of a stack, on the cloud that `make live` was configured for.

All tests share one stack, since on Google each takes minutes and money: they run in this order,
and those after `up` need it. What differs between clouds is recorded, not asserted.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.live.harness.cleanup import remaining_items
from tests.live.harness.live import Live
from tests.live.harness.settings import NODE_TYPE, node_zone
from tests.support.stack_checks import (
    bucket_name,
    call,
    check_made,
    check_nothing_left,
    check_second_up,
)
from tpuctl.cloud.classification import NodesClosed
from tpuctl.errors import NotFound, TpuctlError, Usage
from tpuctl.flows.stack.permissions import missing_permissions
from tpuctl.model.plan import Action
from tpuctl.resources.network.network import Network
from tpuctl.resources.tpu.tpu_node_v1 import RemoteNode

COUNTING = """\
import sys, time
for number in range(40):
    print("line", number, flush=True)
    time.sleep(0.05)
sys.exit(int(sys.argv[1]))
"""
LINES = "".join(f"line {number}\n" for number in range(40)).encode()
# Writes an object and reads it again as the machine's account, in plain HTTP.
STORING = """\
import json, os, urllib.parse, urllib.request
host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
account = f"http://{host}/computeMetadata/v1/instance/service-accounts/default"
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def metadata(name):
    asked = urllib.request.Request(f"{account}/{name}", headers={"Metadata-Flavor": "Google"})
    return direct.open(asked, timeout=20).read()
token = json.loads(metadata("token"))["access_token"]
bucket = os.environ["TPUCTL_BUCKET"]
name = os.environ["TPUCTL_OUTPUT"].split("/", 3)[3] + "/note.txt"
def ask(verb, path, body=None, **query):
    url = f"https://storage.googleapis.com{path}?" + urllib.parse.urlencode(query)
    headers = {"Authorization": "Bearer " + token, "Content-Type": "text/plain"}
    return urllib.request.urlopen(
        urllib.request.Request(url, data=body, method=verb, headers=headers), timeout=60
    ).read()
ask("POST", f"/upload/storage/v1/b/{bucket}/o", b"written there", uploadType="media", name=name)
quoted = urllib.parse.quote(name, safe="")
print(ask("GET", f"/storage/v1/b/{bucket}/o/{quoted}", alt="media").decode())
print(json.loads(ask("GET", f"/storage/v1/b/{bucket}"))["name"])
print(metadata("email").decode().strip())
"""
DENIAL = "    tpu: {kind: vm, runtime: "


def test_plan_creates_everything_and_has_price(live: Live) -> None:
    prepared = live.run_step("plan", live.stack.plan())
    actions = {change.address.partition("/")[0]: change.action for change in prepared.plan}
    for kind in ("bucket", "account", "node", "firewall"):
        assert actions[kind] is Action.CREATE, kind
    assert actions["project"] is Action.NOTHING
    assert live.settings.cost().per_hour is not None
    assert live.stack.stack.price is not None
    live.recorder.fact("plan", {kind: action.value for kind, action in sorted(actions.items())})


def test_plan_creates_nothing(live: Live) -> None:
    assert asyncio.run(remaining_items(live.settings)) == []


def test_caller_has_all_required_permissions(live: Live) -> None:
    work = missing_permissions(live.stack.stack, live.stack.cloud)
    missing = live.run_step("permissions", work)
    assert [permission.permission.name for permission in missing] == [], (
        "the caller lacks permissions"
    )


def test_up_creates_node_of_stack_file(stack: Live) -> None:
    work = check_made(
        stack.stack,
        type_name=stack.settings.type_name,
        spot=stack.settings.capacity == "spot",
    )
    node = asyncio.run(work)
    stack.recorder.fact("health", node.health.name)
    stack.recorder.fact("network", node.network_config.network)
    stack.recorder.fact("metadata of the node", sorted(node.metadata))


def test_quota_can_be_read(stack: Live) -> None:
    path = f"/v1beta1/projects/{stack.settings.project}/services/tpu.googleapis.com"

    async def read() -> Any:
        client = stack.stack.cloud.client("rest")
        return await stack.stack.cloud.call(
            "quota", client.call, "GET", "serviceusage", f"{path}/consumerQuotaMetrics"
        )

    answer = stack.run_step("quota", read())
    metrics = sorted(metric["metric"] for metric in answer["metrics"])
    assert all(metric.startswith("tpu.googleapis.com/") for metric in metrics)
    stack.recorder.fact("quota metrics", metrics)


def test_up_again_does_nothing(stack: Live) -> None:
    stack.run_step("up again", check_second_up(stack.stack, stack.events))


def test_status_shows_node_and_bucket(stack: Live) -> None:
    status = stack.run_step("status", stack.stack.status())
    (node,) = status.nodes
    assert (node.state, node.accelerator_type) == ("READY", stack.settings.type_name)
    assert node.zone in stack.settings.zones
    assert node.created is not None
    assert abs(time.time() - node.created.timestamp()) < stack.settings.minutes * 60
    assert status.bucket == bucket_name(stack.stack)


@pytest.mark.parametrize("expected_code", [0, 3])
def test_job_returns_exit_code_and_log_without_duplicates(stack: Live, expected_code: int) -> None:
    code, log = stack.run_script(f"counting-{expected_code}", COUNTING, str(expected_code))
    assert (code, log) == (expected_code, LINES)

    async def stored() -> tuple[bytes, str]:
        (latest, *_) = await stack.stack.jobs()
        log = await stack.stack.store.get_bytes(latest.record.log_name(0))
        return log, latest.status.state

    assert asyncio.run(stored()) == (LINES, "failed" if expected_code else "succeeded")


def test_machine_account_can_use_bucket(stack: Live) -> None:
    code, log = stack.run_script("storing", STORING)
    assert code == 0, log.decode()
    account = f"{stack.settings.stack}-tpu@{stack.settings.project}.iam.gserviceaccount.com"
    assert log.decode().splitlines() == ["written there", bucket_name(stack.stack), account]

    async def read() -> bytes:
        record = await stack.stack.job()
        return await stack.stack.store.get_bytes(
            f"{record.object_name.rpartition('/')[0]}/output/note.txt"
        )

    assert asyncio.run(read()) == b"written there"


def test_missing_resources_raise_not_found(stack: Live) -> None:
    """The recorded error texts are input for the classification."""
    project, zone = stack.settings.project, stack.settings.zones[0]
    absent = f"{stack.settings.stack}-absent"
    node = {"name": f"projects/{project}/locations/{zone}/nodes/{absent}"}
    queued = {"name": f"projects/{project}/locations/{zone}/queuedResources/{absent}"}
    e_mail = f"{absent}@{project}.iam.gserviceaccount.com"
    account = {"name": f"projects/{project}/serviceAccounts/{e_mail}"}
    machine = {"project": project, "zone": zone, "instance": absent}
    network = {"project": project, "network": absent}
    for name, client, method, arguments, fields in (
        ("a node that is not there", "tpu", "get_node", (node,), {}),
        ("deleting it", "tpu", "delete_node", (node,), {}),
        ("a request that is not there", "tpu", "get_queued_resource", (queued,), {}),
        ("a machine that is not there", "instances", "get", (), machine),
        ("a network that is not there", "networks", "get", (), network),
        ("a bucket that is not there", "storage", "get_bucket", (f"{absent}-{project}",), {}),
        ("an account that is not there", "iam", "get_service_account", (account,), {}),
    ):
        with stack.recorder.expect_refusal(name, NotFound):
            asyncio.run(call(stack.stack, client, method, *arguments, **fields))


def test_unknown_type_is_rejected(stack: Live) -> None:
    zone = stack.settings.zones[0]
    request = {
        "parent": f"projects/{stack.settings.project}/locations/{zone}",
        "node_id": f"{stack.settings.stack}-wrong",
        "node": {
            "accelerator_type": "v9-8",  # does not exist
            "runtime_version": stack.settings.runtime,
            "labels": {"tpuctl-stack": stack.settings.stack},
        },
    }
    with stack.recorder.expect_refusal("a type that there is not", Usage, NotFound):
        asyncio.run(call(stack.stack, "tpu", "create_node", request))


def test_tpu_node_is_rejected_with_hint(stack: Live) -> None:
    """A few projects may still create one; then it is deleted immediately."""

    async def try_it() -> TpuctlError | None:
        network = await Network(stack.stack.stack, stack.stack.cloud).usable_name()
        text = (
            f"stack: {stack.settings.node_stack}\nproject: {{id: {stack.settings.project}}}\n"
            f"tpu: {{kind: node, type: {NODE_TYPE}, zones: [{node_zone()}], "
            "capacity: preemptible}\n"
            f"network: {{name: {network}}}\n"
        )
        node = stack.open(stack.settings.node_stack, text)
        resource = RemoteNode(Network(node.stack, node.cloud))
        change = resource.diff(await resource.observe())
        assert change.action is Action.CREATE
        try:
            await resource.apply(change, lambda text, fraction: None)
        except TpuctlError as error:
            return error
        finally:
            removal = resource.removal(await resource.observe())
            if removal.is_work:
                await resource.apply(removal, lambda text, fraction: None)
        return None

    error = stack.run_step("a TPU node", try_it())
    stack.recorder.fact("TPU nodes", "made" if error is None else "refused")
    if error is not None:
        stack.recorder.record_refusal("a TPU node", error)
        assert isinstance(error, NodesClosed), error
        assert error.exit_code == 77
        assert DENIAL in error.diagnostics[0].hint


def test_down_leaves_nothing_and_verifies_it(stack: Live) -> None:
    down = stack.down()
    proof = {item.address.partition("/")[0]: item.state for item in down.remaining}
    stack.recorder.fact("proof of down", proof)
    asyncio.run(check_nothing_left(stack.stack, down))


def test_run_leaves_no_orphans(live: Live) -> None:
    assert asyncio.run(remaining_items(live.settings)) == []
