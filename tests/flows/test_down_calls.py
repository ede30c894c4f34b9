"""The calls of `down`: each of its round trips is time for which a user waits."""

from __future__ import annotations

from collections import Counter
from itertools import dropwhile, takewhile
from typing import Any

from tests.support.projects import Project
from tpuctl.emulator.client import remote_control
from tpuctl.emulator.client.server_process import LocalCloud

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
