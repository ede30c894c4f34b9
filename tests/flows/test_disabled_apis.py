"""What a disabled API hides may exist: it is never reported as absent or deleted."""

from __future__ import annotations

import pytest

from tests.support.locations import ZONE
from tests.support.projects import Bench, Project
from tpuctl.cloud.operations import long_operation
from tpuctl.errors import ApiDisabled
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

TPU, COMPUTE = "tpu.googleapis.com", "compute.googleapis.com"
ENABLE = f"gcloud services enable {TPU} --project="


async def set_api(bench: Bench, service: str, method: str) -> None:
    """Enable or disable an API of the project, as `gcloud services` does."""
    name = f"projects/{bench.stack.project}/services/{service}"
    operation = await bench.call("services", f"{method}_service", {"name": name})
    await long_operation(
        bench.stack.cloud, "services", operation.operation, subject=service, seconds=30
    )


async def test_down_deletes_only_what_it_can_check(project: Project) -> None:
    bench = project.stack()
    await bench.provision()
    await set_api(bench, TPU, "disable")
    code, out, stderr = bench.type("down", "--yes")
    node = f"node/{bench.stack.stack.names.node}"
    assert code == 1
    assert "No billable resources are left" not in out
    (outcome,) = [line for line in stderr.splitlines() if line.startswith("Deleted:")]
    assert node not in outcome.partition(". ")[0]
    assert node in outcome.partition("Not checked: ")[2]
    assert "error: Not checked" in stderr
    assert f"{TPU} is not enabled in project {project.id}" in stderr
    assert node in stderr.partition("Not checked")[2]
    assert ENABLE + project.id in stderr
    answer = bench.answer("down", "--yes")
    assert (answer["exit_code"], answer["diagnostics"][0]["summary"]) == (1, "Not checked")

    await set_api(bench, TPU, "enable")
    assert (await bench.stack.node()).state == "READY"
    done = await bench.reopen().down()
    states = {item.address: item.state for item in done.remaining}
    assert states[node] == "deleted"


async def test_status_and_orphans_say_what_they_could_not_list(project: Project) -> None:
    bench = project.stack()
    await bench.provision()
    await set_api(bench, TPU, "disable")
    for command in ("status", "orphans"):
        code, out, stderr = bench.type(command)
        assert code == 1, command
        assert "Not checked" in stderr
        assert "node/*" in stderr
        assert ENABLE + project.id in stderr
        assert "not running" not in out, "nothing is known of the TPU"
        answer = bench.answer(command)
        assert answer["data"]["unlisted"], command
        assert "node" in answer["data"]["unlisted"]
        assert answer["data"]["complete"] is False
    with pytest.raises(ApiDisabled):
        await bench.stack.node()


async def test_disabled_compute_engine_hides_a_controller(project: Project) -> None:
    bench = project.stack(extra="controller: {}")
    await bench.provision()
    await set_api(bench, COMPUTE, "disable")
    code, _, stderr = bench.type("status")
    assert code == 1
    assert f"{COMPUTE} is not enabled" in stderr
    assert "controller/*" in stderr


async def test_stack_that_was_never_up_needs_no_api(project: Project) -> None:
    """Nothing of it can be in an API that was not enabled yet."""
    other = project.stack()
    await other.provision()  # creates the project
    await set_api(other, TPU, "disable")
    bench = project.stack()
    code, out, stderr = bench.type("status")
    assert code == 0, stderr
    assert "was found" in out
    code, out, stderr = bench.type("down", "--yes")
    assert code == 0, stderr
    assert "There was nothing to delete." in out
    assert "Deleted" not in out


async def test_denied_node_is_not_absent_without_its_account(
    project: Project, cloud: LocalCloud
) -> None:
    """The node's dependencies may be gone, and the node may not."""
    bench = project.stack()
    await bench.provision()
    await bench.call(
        "iam",
        "delete_service_account",
        {
            "name": f"projects/{project.id}/serviceAccounts/"
            f"{bench.stack.stack.names.service_account_email}"
        },
    )
    for method in ("GetNode", "ListNodes"):
        remote_control.add_fault(cloud, "deny", method=f"*/{method}", times="unlimited")
    code, out, stderr = bench.type("down", "--yes")
    assert code == 77, stderr
    assert f"node/{bench.stack.stack.names.node}" in stderr
    assert "No billable resources are left" not in out


async def test_up_again_finds_what_a_disabled_api_hid(project: Project) -> None:
    """Not another TPU in the first zone, beside the one in the second."""
    bench = project.stack(zones=f"us-central1-a, {ZONE}", extra="bucket: {allow_egress: true}")
    await project.stack(name=bench.stack.stack.name).provision()  # in the second zone
    await set_api(bench, TPU, "disable")
    prepared = await bench.provision()
    assert prepared.stack.zone == ZONE
    (node,) = (await bench.stack.status()).nodes
    assert node.zone == ZONE


@pytest.mark.parametrize("command", ["status", "down --yes"])
def test_project_that_is_not_visible_may_have_the_stack(project: Project, command: str) -> None:
    """Google answers alike for one that does not exist and one that the caller may not see."""
    bench = project.stack()
    text = bench.stack.stack_file.read_text("utf-8").replace("create: true, ", "")
    bench.stack.stack_file.write_text(text, "utf-8")
    code, out, stderr = bench.type(*command.split())
    assert code == 1, stderr
    assert f"project {project.id} does not exist, or you have no access to it" in stderr
    assert "No billable resources are left" not in out


async def test_run_up_enables_disabled_api(project: Project) -> None:
    bench = project.stack()
    (bench.folder / "train.py").write_text("print(1)\n", "utf-8")
    await bench.provision()
    await set_api(bench, TPU, "disable")
    errors = bench.type("run", "--up", "--yes", "train.py")[2]
    assert "API not enabled" not in errors
    assert (await bench.stack.node()).state == "READY"
