"""`up` and `down` report what they did, not what they had planned or found absent."""

from __future__ import annotations

from tests.support.projects import Project
from tpuctl.cloud.operations import compute_operation
from tpuctl.model.events import Outcome, StepFinished, StepStarted
from tpuctl.model.plan import Action


async def test_rule_that_is_not_needed_is_neither_created_nor_deleted(project: Project) -> None:
    """Enabling Compute Engine creates the network `default`, which needs no rule for workers."""
    bench = project.stack()
    planned = await bench.stack.plan()
    rule = f"firewall/{bench.stack.stack.names.worker_rule}"
    assert planned.plan.change(rule).action is Action.CREATE
    assert "unless the network is `default`" in planned.plan.change(rule).because
    prepared = await bench.stack.provision(planned)
    started = {event.address for event in bench.events if isinstance(event, StepStarted)}
    ended = {
        event.address: event.outcome for event in bench.events if isinstance(event, StepFinished)
    }
    for address in (rule, "network/main"):
        assert address not in started
        assert ended[address] is Outcome.UNCHANGED
        assert prepared.plan.change(address).action is Action.NOTHING

    done = await bench.reopen().down()
    states = {item.address: item.state for item in done.remaining}
    assert states[f"node/{bench.stack.stack.names.node}"] == "deleted"
    assert rule not in states
    assert states["network/main"] == "kept"

    answer = bench.answer("down", "--yes")
    assert {item["state"] for item in answer["data"]["remaining"]} == {"kept"}
    code, out, _ = bench.type("down", "--yes")
    assert code == 0
    assert "There was nothing to delete." in out
    assert "Deleted" not in out


async def test_rules_of_the_own_network_are_created(project: Project) -> None:
    """In a project without `default`, and the rule that denies SSH is not needed in it."""
    first = project.stack()
    await first.provision()
    await first.stack.down()
    for rule in await first.call("firewalls", "list", project=project.id):
        operation = await first.call(
            "firewalls", "delete_unary", project=project.id, firewall=rule.name
        )
        await compute_operation(first.stack.cloud, operation, subject=rule.name, seconds=30)
    operation = await first.call("networks", "delete_unary", project=project.id, network="default")
    await compute_operation(first.stack.cloud, operation, subject="the network", seconds=30)
    bench = project.stack()
    prepared = await bench.provision()
    names = bench.stack.stack.names
    actions = {change.address: change.action for change in prepared.plan}
    assert actions["network/main"] is Action.CREATE
    assert actions[f"firewall/{names.worker_rule}"] is Action.CREATE
    assert actions[f"firewall/{names.ssh_deny_rule}"] is Action.NOTHING
    states = {item.address: item.state for item in (await bench.reopen().down()).remaining}
    assert states["network/main"] == states[f"firewall/{names.worker_rule}"] == "deleted"
    assert f"firewall/{names.ssh_deny_rule}" not in states
