"""The calls of `down`: each of its round trips is time for which a user waits, and may fail."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from itertools import cycle, dropwhile, takewhile
from typing import Any

import pytest

from tests.support.projects import Bench, Project
from tpuctl.cloud import clients, objects
from tpuctl.errors import Denied, TpuctlError
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.flows.stack import down
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.polling import Backoff

# What several kinds need, in addition to the kind that it belongs to: the project's number proves
# that a bucket is the stack's own, and each kind of grants reads the policy of its resource.
# There are three firewall rules and two networks that may belong to a stack.
MOST_READS = {
    "google.cloud.resourcemanager.v3.Projects/GetProject": 2,
    "google.cloud.resourcemanager.v3.Projects/GetIamPolicy": 2,
    "google.cloud.compute.v1.Firewalls/Get": 3,
    "google.cloud.compute.v1.Networks/Get": 2,
}
DELETIONS = {
    "google.cloud.tpu.v2.Tpu/DeleteNode": 1,
    "google.cloud.compute.v1.Firewalls/Delete": 2,  # the rule that allows SSH, and its opposite
    "google.iam.admin.v1.IAM/DeleteServiceAccount": 1,
    "storage.buckets.delete": 1,
}


def is_storage(call: dict[str, Any]) -> bool:
    """Whether a call belongs to the bucket, which holds the stack's record."""
    return str(call["method"]).startswith("storage.")


async def test_down_reads_everything_once_before_and_after(
    project: Project, null_cloud: LocalCloud
) -> None:
    """It lists and reads everything, deletes, and lists and reads everything to verify it."""
    bench = project.stack()
    await bench.provision()
    since = remote_control.calls(null_cloud)[-1]["number"]
    await bench.reopen().down(delete_bucket=True)
    calls = remote_control.calls(null_cloud, since)

    mutations = Counter(call["method"] for call in calls if call["mutating"])
    assert {method: mutations[method] for method in DELETIONS} == DELETIONS
    reads = [call for call in calls if not is_storage(call)]
    planning = Counter(
        call["method"] for call in takewhile(lambda call: not call["mutating"], reads)
    )
    backwards = takewhile(lambda call: not call["mutating"], reversed(calls))
    verification = Counter(call["method"] for call in backwards if not is_storage(call))
    for reading in (planning, verification):
        assert reading <= Counter(dict.fromkeys(reading, 1)) | Counter(MOST_READS)
    assert verification.keys() == planning.keys()


async def test_down_deletes_node_without_reading_it_again(
    project: Project, null_cloud: LocalCloud
) -> None:
    """Only a node of a queued resource is read again, as its request may have deleted it."""
    bench = project.stack()
    await bench.provision()
    since = remote_control.calls(null_cloud)[-1]["number"]
    await bench.reopen().down()
    calls = [call["method"] for call in remote_control.calls(null_cloud, since)]
    first, last = "google.cloud.tpu.v2.Tpu/GetNode", "google.cloud.tpu.v2.Tpu/DeleteNode"
    until_deletion = [*takewhile(lambda method: method != last, calls)]
    assert until_deletion.count(first) == 1
    assert [*dropwhile(lambda method: method != last, calls)].count(first) == 1  # verified


# What a stack is charged for: "node" has a TPU node with its controller; "whole" a TPU VM, a
# controller and a disk.
CHARGED = {
    "queued": "queue: {nodes: 2}",
    "group": "api: compute",
    "node": "kind: node, data_disks: [{size_gb: 10}]",
    "whole": "data_disks: [{size_gb: 10}]",
}
DELETING = re.compile(
    r"Delete(Node|QueuedResource)$|(Instances|InstanceGroupManagers|Disks)/Delete$"
)
UNCLOSED = "ignore:unclosed <socket:ResourceWarning"  # of calls whose errors are kept
SAMPLE = 2  # calls per kind of stack that fail; `make soak` tests all of them


async def charged(bench: Bench) -> set[str]:
    """The addresses of what is charged by the hour."""
    stack = bench.stack.stack
    items = await list_resources(
        bench.stack.cloud, stack.project, stack=stack.name, unused_apis=stack.unused_apis
    )
    return {item.address for item in items if item.is_billable and item.kind != "bucket"}


class FailingCalls:
    """A stack, and `down` with all calls of a method failing."""

    def __init__(self, project: Project, cloud: LocalCloud, kind: str) -> None:
        type_name = "v6e-16" if kind == "group" else "v3-8"
        extra = "controller: {}\nlimits: {idle: 1h}" if kind == "whole" else ""
        self.bench = project.stack(CHARGED[kind], extra, type_name=type_name)
        self.cloud = cloud

    async def methods(self) -> list[str]:
        """The methods that `down` calls, in order."""
        await self.bench.provision()
        since = remote_control.calls(self.cloud)[-1]["number"]
        await self.bench.reopen().down()
        called = [call["method"] for call in remote_control.calls(self.cloud, since)]
        return [*dict.fromkeys(called)]

    async def assert_deleted_despite(self, method: str, fault: str) -> None:
        """What is charged is deleted, unless its deletion is what fails."""
        stack = self.bench.reopen()
        await stack.provision(await stack.plan())
        assert await charged(self.bench)
        remote_control.add_fault(self.cloud, fault, method=method, times="unlimited")
        with contextlib.suppress(TpuctlError):
            await self.bench.reopen().down()
        remote_control.remove_all_faults(self.cloud)
        left = await charged(self.bench)
        assert not left or DELETING.search(method), (method, fault, left)
        await self.bench.reopen().down()
        assert not await charged(self.bench), method


@pytest.fixture
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of this process fail soon."""
    monkeypatch.setattr(clients, "RETRY", Backoff(0.001, 0.001))
    monkeypatch.setattr(objects, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(down, "RECORD_SECONDS", 0.5)


@pytest.mark.filterwarnings(UNCLOSED)
@pytest.mark.parametrize("kind", CHARGED)
@pytest.mark.usefixtures("few_retries")
async def test_down_deletes_what_is_charged_despite_some_failing_call(
    project: Project, cloud: LocalCloud, kind: str
) -> None:
    failing, choice = FailingCalls(project, cloud, kind), random.Random(f"failing {kind}")
    methods = await failing.methods()
    for method, fault in zip(choice.sample(methods, SAMPLE), ("deny", "unavailable"), strict=True):
        await failing.assert_deleted_despite(method, fault)


@pytest.mark.soak
@pytest.mark.filterwarnings(UNCLOSED)
@pytest.mark.parametrize("kind", CHARGED)
@pytest.mark.usefixtures("few_retries")
async def test_down_deletes_what_is_charged_despite_any_failing_call(
    project: Project, cloud: LocalCloud, kind: str
) -> None:
    """Each call fails for every kind of stack, in one of the ways, and in each way for some."""
    failing = FailingCalls(project, cloud, kind)
    ways = cycle(random.sample(("deny", "unavailable"), 2))
    for method, fault in zip(await failing.methods(), ways, strict=False):
        await failing.assert_deleted_despite(method, fault)


async def change_bucket(bench: Bench, **settings: Any) -> None:
    """Set properties of the stack's bucket, as somebody else may at any time."""
    bucket = bench.stack.cloud.client("storage").bucket(bench.stack.stack.bucket)
    for name, value in settings.items():
        setattr(bucket, name, value)
    await bench.call("storage", "_patch_resource", bucket.path, bucket._properties)


async def test_down_deletes_the_tpu_of_a_stack_whose_bucket_is_under_retention(
    project: Project,
) -> None:
    bench = project.stack("data_disks: [{size_gb: 10}]")
    await bench.provision()
    await change_bucket(bench, retention_period=86_400)
    code, out, errors = bench.type("down", "--yes")
    assert (code, out) == (77, "")
    assert not await charged(bench)
    assert "Object under retention" in errors
    assert "roles/" not in errors, "no permission is missing"
    assert '"error":' not in errors, "Google's message, not its JSON"
    assert re.search(r"Deleted: .*node/", errors)
    for command in ("plan", "doctor"):
        assert "retention policy" in "".join(bench.type(command)[1:]), command
    await change_bucket(bench, retention_period=None)
    assert not (await bench.reopen().down(delete_bucket=True)).leaks


async def test_noncurrent_versions_are_deleted_with_the_bucket(project: Project) -> None:
    """And they are charged, of which the plan warns."""
    bench = project.stack()
    await bench.provision()
    await change_bucket(bench, versioning_enabled=True)
    store = bench.stack.store
    for data in (b"1", b"2"):
        await store.put_bytes("jobs/log", data)
    for command in ("plan", "doctor"):
        output = "".join(bench.type(command)[1:])
        assert "Bucket keeps old versions" in output, command
        assert "--no-versioning" in output, command
    done = await bench.reopen().down(delete_bucket=True)
    assert {item.state for item in done.remaining if item.address.startswith("bucket/")} == {
        "deleted"
    }


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("Object 'b/o' is under active Event-Based hold and cannot be deleted", "Object on hold"),
        (
            "Object 'b/o' is subject to bucket's retention policy or object retention and cannot "
            "be deleted or overwritten until 2026-03-01T00:00:00Z",
            "Object under retention",
        ),
    ],
)
async def test_objects_that_cannot_be_deleted_are_named(
    project: Project, cloud: LocalCloud, text: str, summary: str
) -> None:
    bench = project.stack()
    await bench.provision()
    method = "storage.objects.delete"
    remote_control.add_fault(cloud, "deny", method=method, text=text, times="unlimited")
    with pytest.raises(Denied, match=summary) as caught:
        await bench.reopen().down(delete_bucket=True)
    assert "being written to" not in str(caught.value)
    assert bench.stack.stack.bucket in str(caught.value)
    assert not await charged(bench)
