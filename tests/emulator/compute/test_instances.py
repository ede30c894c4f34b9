"""Controller VMs: create, show, change and delete."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.polling import async_until, until

NAME = "projects/local-project/zones/europe-west4-a/instances/controller"
DISK = "projects/local-project/zones/europe-west4-a/disks/controller"


def test_instance_has_machine_addresses_account_and_disk(engine: Any) -> None:
    labels = {"tpuctl-stack": "demo"}
    resource = engine.controller(labels=labels, tags={"items": ["ssh"]})
    operation = engine.wait_ok(engine.insert(resource))
    assert (operation.operation_type, operation.target_link) == ("insert", engine.link + NAME)
    assert operation.zone == f"{engine.link}projects/local-project/zones/europe-west4-a"
    instance = engine.get()
    spec = engine.cloud.host.specs[NAME]
    assert engine.cloud.host.running == {NAME}
    assert (instance.status, instance.self_link, dict(instance.labels)) == (
        "RUNNING",
        engine.link + NAME,
        labels,
    )
    assert operation.target_id == instance.id
    assert instance.machine_type.endswith("/zones/europe-west4-a/machineTypes/n1-standard-2")
    assert instance.zone == operation.zone
    assert list(instance.tags.items) == ["ssh"]
    (interface,) = instance.network_interfaces
    address = spec.endpoint.address
    assert (interface.network_i_p, interface.access_configs[0].nat_i_p) == (address, address)
    assert interface.network.endswith("/global/networks/default")
    assert interface.subnetwork.endswith("/regions/europe-west4/subnetworks/default")
    number = engine.cloud.project_number
    email = f"{number}-compute@developer.gserviceaccount.com"
    assert (instance.service_accounts[0].email, spec.service_account) == (email, email)
    assert (
        engine.cloud.in_loop(engine.cloud.server.registry.access.identify, spec.access_token)
        == email
    )
    assert list(instance.service_accounts[0].scopes) == list(spec.scopes)
    assert (spec.kind, spec.machine_type, spec.tensorflow) == ("instance", "n1-standard-2", None)
    (attached,) = instance.disks
    assert (attached.source, attached.disk_size_gb, attached.boot, attached.auto_delete) == (
        engine.link + DISK,
        50,
        True,
        True,
    )
    disk = engine.disks.get({**engine.in_zone, "disk": "controller"})
    assert (disk.size_gb, disk.status, list(disk.users)) == (50, "READY", [engine.link + NAME])
    assert disk.type_.endswith("/diskTypes/pd-ssd")
    assert "/images/ubuntu-2204-jammy-v" in disk.source_image


def test_tensorflow_image_sets_version_in_machine_spec(engine: Any) -> None:
    resource = engine.controller()
    params = resource["disks"][0]["initialize_params"]
    params["source_image"] = "projects/ml-images/global/images/family/tf-2-12-0"
    number = engine.cloud.project_number
    # By number, as gcloud's execution_groups/util.py names the network.
    resource["network_interfaces"] = [{"network": f"projects/{number}/global/networks/default"}]
    engine.wait_ok(engine.insert(resource))
    assert engine.cloud.host.specs[NAME].tensorflow == "2.12.0"
    instance = engine.get()
    network = f"{engine.link}projects/local-project/global/networks/default"
    assert instance.network_interfaces[0].network == network


def test_external_address_and_account_are_optional(engine: Any) -> None:
    resource = engine.controller(service_accounts=[])
    resource["network_interfaces"] = [{"subnetwork": "regions/europe-west4/subnetworks/default"}]
    engine.wait_ok(engine.insert(resource))
    instance = engine.get()
    assert not instance.network_interfaces[0].access_configs
    assert instance.network_interfaces[0].network_i_p
    assert not instance.service_accounts
    spec = engine.cloud.host.specs[NAME]
    assert (spec.service_account, spec.access_token, spec.scopes) == ("", "", ())


def test_insert_is_idempotent_by_request_id(engine: Any) -> None:
    request_id = str(uuid.uuid4())

    first = engine.wait_ok(engine.insert(engine.controller(), request_id=request_id))
    second = engine.insert(engine.controller(), request_id=request_id)
    assert second.name == first.name
    with pytest.raises(exceptions.Conflict) as caught:
        engine.insert(engine.controller(), request_id=str(uuid.uuid4()))
    assert caught.value.message.endswith(f"The resource '{NAME}' already exists")
    assert caught.value.errors[0]["reason"] == "alreadyExists"
    assert engine.cloud.host.called.count("boot") == 1


async def test_concurrent_inserts_with_same_request_id(make_cloud: Any, make_engine: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("compute")
    cloud.host.gate.clear()
    engine = make_engine(cloud)
    request_id = str(uuid.uuid4())
    calls = [
        asyncio.to_thread(engine.insert, engine.controller(), request_id=request_id)
        for _ in range(4)
    ]
    operations = await asyncio.gather(*calls)
    assert len({operation.name for operation in operations}) == 1
    with pytest.raises(exceptions.Conflict):
        await asyncio.to_thread(engine.insert, engine.controller())
    with pytest.raises(exceptions.BadRequest) as caught:
        await asyncio.to_thread(
            engine.instances.stop_unary, {**engine.in_zone, "instance": "controller"}
        )
    assert caught.value.errors[0]["reason"] == "resourceNotReady"
    assert (await asyncio.to_thread(engine.get)).status == "STAGING"
    cloud.host.gate.set()
    await asyncio.to_thread(engine.wait_ok, operations[0])
    assert (await asyncio.to_thread(engine.get)).status == "RUNNING"


def test_instance_stop_start_delete(engine: Any) -> None:
    host = engine.cloud.host
    which = {**engine.in_zone, "instance": "controller"}

    def turn(verb: str) -> Any:
        operation = getattr(engine.instances, f"{verb}_unary")(which, timeout=60)
        assert engine.wait_ok(operation).operation_type == verb
        return None if verb == "delete" else engine.get()

    engine.wait_ok(engine.insert(engine.controller()))
    before = engine.get()
    stopped = turn("stop")
    assert (stopped.status, host.running) == ("TERMINATED", set())
    assert not stopped.network_interfaces[0].access_configs[0].nat_i_p
    assert turn("stop").status == "TERMINATED"
    started = turn("start")
    assert (started.status, host.running) == ("RUNNING", {NAME})
    assert started.network_interfaces[0].network_i_p == before.network_interfaces[0].network_i_p
    assert turn("start").id == before.id
    assert host.called.count("boot") == 2
    turn("delete")
    assert host.discarded == [NAME]
    with pytest.raises(exceptions.NotFound) as caught:
        engine.get()
    assert caught.value.message.endswith(f"The resource '{NAME}' was not found")
    with pytest.raises(exceptions.NotFound):
        engine.disks.get({**engine.in_zone, "disk": "controller"})


def test_delete_aborts_pending_insert(engine: Any) -> None:
    engine.cloud.host.gate.clear()
    which = {**engine.in_zone, "instance": "controller"}
    insertion = engine.insert(engine.controller())
    deletion = engine.instances.delete_unary(which)
    assert engine.get().status == "STOPPING"
    with pytest.raises(exceptions.BadRequest):
        engine.instances.delete_unary(which)
    engine.cloud.in_loop(engine.cloud.host.gate.set)
    engine.wait_ok(deletion)
    code, _ = engine.wait_error(insertion)
    assert code == "RESOURCE_NOT_READY"
    with pytest.raises(exceptions.NotFound):
        engine.get()
    assert not engine.cloud.host.running


def test_failed_boot_leaves_no_instance(engine: Any) -> None:
    engine.cloud.host.broken = "no such image"
    code, text = engine.wait_error(engine.insert(engine.controller()))
    assert code == "INTERNAL_ERROR"
    assert "no such image" in text
    assert engine.cloud.host.discarded == [NAME]
    assert [*engine.instances.list(engine.in_zone), *engine.disks.list(engine.in_zone)] == []


def test_instance_and_project_ssh_keys_are_merged(engine: Any) -> None:
    host = engine.cloud.host
    instance_metadata = {"items": [{"key": "ssh-keys", "value": "me:ssh-ed25519 OWN me"}]}
    shared = {"items": [{"key": "ssh-keys", "value": "you:ssh-ed25519 SHARED you"}]}

    request = {"project": "local-project", "metadata_resource": shared}
    engine.wait_ok(engine.projects.set_common_instance_metadata_unary(request, timeout=60))
    engine.wait_ok(engine.insert(engine.controller(metadata=instance_metadata)))
    both = "me:ssh-ed25519 OWN me\nyou:ssh-ed25519 SHARED you"
    assert host.specs[NAME].metadata["ssh-keys"] == both

    def change(instance_items: list[dict[str, str]]) -> None:
        instance = engine.get()
        metadata = {"items": instance_items, "fingerprint": instance.metadata.fingerprint}
        request = {**engine.in_zone, "instance": "controller", "metadata_resource": metadata}
        engine.wait_ok(engine.instances.set_metadata_unary(request, timeout=60))
        with pytest.raises(exceptions.PreconditionFailed):
            engine.instances.set_metadata_unary(request, timeout=60)

    change([*instance_metadata["items"], {"key": "block-project-ssh-keys", "value": "TRUE"}])
    assert host.specs[NAME].metadata["ssh-keys"] == "me:ssh-ed25519 OWN me"
    change([])
    assert host.specs[NAME].metadata["ssh-keys"] == "you:ssh-ed25519 SHARED you"

    def share_nothing() -> None:
        project = engine.projects.get({"project": "local-project"}, timeout=60)
        empty = {"fingerprint": project.common_instance_metadata.fingerprint}
        request = {"project": "local-project", "metadata_resource": empty}
        engine.wait_ok(engine.projects.set_common_instance_metadata_unary(request, timeout=60))

    share_nothing()
    assert "ssh-keys" not in host.specs[NAME].metadata


def test_ssh_port_key_survives_set_metadata(
    engine: Any,
) -> None:
    from tpuctl.emulator.compute.instances import instance_lifecycle
    from tpuctl.emulator.tpu import nodes

    assert instance_lifecycle.PORT_KEY == nodes.PORT_KEY
    engine.cloud.host.ssh_port = 2222

    def run() -> Any:
        engine.wait_ok(engine.insert(engine.controller()))
        metadata = {"items": [{"key": "a", "value": "b"}]}
        metadata["fingerprint"] = engine.get().metadata.fingerprint
        request = {**engine.in_zone, "instance": "controller", "metadata_resource": metadata}
        engine.wait_ok(engine.instances.set_metadata_unary(request, timeout=60))
        return engine.get().metadata

    values = {item.key: item.value for item in run().items}
    assert values == {"a": "b", "tpuctl-ssh-port": "2222"}


def test_labels_and_tags_require_fingerprints(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller(labels={"a": "1"})))
    which = {**engine.in_zone, "instance": "controller"}
    instance = engine.get()
    labels = {"labels": {"b": "2"}, "label_fingerprint": instance.label_fingerprint}
    request = {**which, "instances_set_labels_request_resource": labels}
    engine.wait_ok(engine.instances.set_labels_unary(request, timeout=60))
    assert dict(engine.get().labels) == {"b": "2"}
    with pytest.raises(exceptions.PreconditionFailed) as caught:
        engine.instances.set_labels_unary(request, timeout=60)
    assert "Labels fingerprint" in caught.value.message
    tags = {"items": ["web"], "fingerprint": instance.tags.fingerprint}
    request = {**which, "tags_resource": tags}
    engine.wait_ok(engine.instances.set_tags_unary(request, timeout=60))
    assert list(engine.get().tags.items) == ["web"]
    with pytest.raises(exceptions.PreconditionFailed):
        engine.instances.set_tags_unary(request, timeout=60)


def test_guest_attributes_require_metadata_flag(engine: Any) -> None:
    which = {**engine.in_zone, "instance": "controller"}

    def query(path: str) -> Any:
        return engine.instances.get_guest_attributes({**which, "query_path": path}, timeout=60)

    engine.wait_ok(engine.insert(engine.controller()))
    with pytest.raises(exceptions.NotFound) as caught:
        query("hostkeys/")
    text = "The resource 'hostkeys/' of type 'Guest Attribute' was not found."
    assert caught.value.message.endswith(text)
    item = {"key": "enable-guest-attributes", "value": "TRUE"}
    request = {"project": "local-project", "metadata_resource": {"items": [item]}}
    engine.wait_ok(engine.projects.set_common_instance_metadata_unary(request, timeout=60))
    (item,) = query("hostkeys/").query_value.items
    assert (item.namespace, item.key) == ("hostkeys", "ssh-ed25519")
    assert item.value == engine.cloud.host.guest_attributes(NAME)["hostkeys"]["ssh-ed25519"]


def test_weather_refuses_and_preempts_instances(engine: Any, tmp_path: Path) -> None:
    def add_weather(room: int) -> str:
        trace = tmp_path / "trace.csv"
        line = f"0,europe-west4-a,n1-standard-2,{room}"
        trace.write_text(f"hours,zone,type,nodes\n{line}\n", "utf-8")
        return str(engine.cloud.add_fault("weather", trace=str(trace)))

    full = add_weather(1)
    spot = {"provisioning_model": "SPOT", "instance_termination_action": "STOP"}
    engine.wait_ok(engine.insert(engine.controller(scheduling=spot)))
    code, message = engine.wait_error(engine.insert(engine.controller("second")))
    assert code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert "does not have enough resources available" in message
    assert engine.cloud.used(full) == 1
    empty = add_weather(0)
    until(lambda: engine.get().status == "TERMINATED", "the preemption")
    assert engine.cloud.used(empty) == 1


async def test_preemption_follows_termination_action(engine: Any) -> None:
    service = engine.cloud.server.registry.service("compute")

    def make(name: str, action: str) -> Any:
        scheduling = {"provisioning_model": "SPOT", "instance_termination_action": action}
        engine.wait_ok(engine.insert(engine.controller(name, scheduling=scheduling)))
        return engine.get(name)

    instance = await asyncio.to_thread(make, "stopping", "STOP")
    assert instance.scheduling.preemptible
    assert not instance.scheduling.automatic_restart
    await asyncio.to_thread(make, "going", "DELETE")
    for name in ("stopping", "going"):
        service.instances.preempt(NAME.replace("controller", name), 0.0)

    def settle() -> Any:
        for operation in engine.zone_operations.list(engine.in_zone):
            engine.wait_ok(operation)
        return {
            instance.name: instance.status for instance in engine.instances.list(engine.in_zone)
        }

    assert await asyncio.to_thread(settle) == {"stopping": "TERMINATED"}
    assert not engine.cloud.host.running


async def test_restart_reboots_machines_and_resumes_operations(
    make_cloud: Any, make_engine: Any
) -> None:
    cloud = await make_cloud()
    cloud.enable("compute")
    engine = make_engine(cloud)
    await asyncio.to_thread(lambda: engine.wait_ok(engine.insert(engine.controller("first"))))
    await asyncio.to_thread(lambda: engine.wait_ok(engine.insert(engine.controller("halted"))))
    which = {**engine.in_zone, "instance": "halted"}
    await asyncio.to_thread(lambda: engine.wait_ok(engine.instances.stop_unary(which)))
    cloud.host.gate.clear()
    operation = await asyncio.to_thread(engine.insert, engine.controller("second"))
    await cloud.server.close()
    restarted = await make_cloud()
    engine = make_engine(restarted)
    await asyncio.to_thread(engine.wait_ok, operation)
    await async_until(lambda: restarted.host.count_running() >= 2, "two machines running")
    assert {name.rpartition("/")[2] for name in restarted.host.running} == {"first", "second"}


def test_instance_lists_filter_page_and_aggregate(engine: Any) -> None:
    other = "us-central1-b"

    for name, stack in (("a", "one"), ("b", "two"), ("c", "one")):
        engine.wait_ok(engine.insert(engine.controller(name, labels={"tpuctl-stack": stack})))
    far = engine.controller("d", other, labels={"tpuctl-stack": "one"})
    request = {"project": "local-project", "zone": other, "instance_resource": far}
    engine.wait_ok(engine.instances.insert_unary(request, timeout=60))

    def listed(**more: Any) -> list[str]:
        return [instance.name for instance in engine.instances.list({**engine.in_zone, **more})]

    assert listed() == ["a", "b", "c"]
    assert listed(max_results=1) == ["a", "b", "c"]
    assert listed(filter="labels.tpuctl-stack=one") == ["a", "c"]
    assert listed(filter="(labels.tpuctl-stack=one) AND (name=c)") == ["c"]
    assert listed(filter="labels.tpuctl-stack=o*") == ["a", "c"]
    assert listed(filter="name!=*a") == listed(filter="name!=a")
    assert listed(filter='name="a" OR name="b"') == ["a", "b"]
    assert listed(filter="labels.tpuctl-stack:* status=RUNNING") == ["a", "b", "c"]
    assert listed(filter="status=TERMINATED") == []
    assert listed(filter='name eq "(a|c)"') == ["a", "c"]
    with pytest.raises(exceptions.BadRequest):
        listed(filter="(name=a")

    request = {
        "project": "local-project",
        "filter": "labels.tpuctl-stack=one",
        "max_results": 2,
    }
    names_by_scope: dict[str, list[str]] = {}
    empty = set()
    for scope, part in engine.instances.aggregated_list(request):
        names_by_scope.setdefault(scope, []).extend(instance.name for instance in part.instances)
        if not part.instances:
            empty.add((part.warning.code, scope))
    assert {scope: names for scope, names in names_by_scope.items() if names} == {
        "zones/europe-west4-a": ["a", "c"],
        f"zones/{other}": ["d"],
    }
    assert ("NO_RESULTS_ON_PAGE", "zones/us-east1-b") in empty
    path = "/compute/v1/projects/local-project/aggregated/instances?returnPartialSuccess=True"
    assert engine.cloud.request("GET", path).status_code == 200


async def test_instance_ids_differ_between_clouds(make_cloud: Any, make_engine: Any) -> None:
    ids = set()
    for folder in ("one", "two"):
        cloud = await make_cloud(folder)
        cloud.enable("compute")
        engine = make_engine(cloud)
        await asyncio.to_thread(
            lambda client=engine: client.wait_ok(client.insert(client.controller()))
        )
        ids.add((await asyncio.to_thread(engine.get)).id)
    assert len(ids) == 2
