"""Changes to existing instances, disks and networks."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

from tests.support.callers import Member, grant, make_role
from tpuctl.local_cloud import remote_control

NAME = "projects/local-project/zones/europe-west4-a/instances/controller"
AT: dict[str, str] = {"instance": "controller"}


def test_reset_reboots_machine(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    engine.wait_ok(engine.instances.reset_unary({**engine.in_zone, **AT}, timeout=60))
    assert engine.cloud.host.called.count("boot") == 2
    assert engine.get().status == "RUNNING"
    engine.wait_ok(engine.instances.stop_unary({**engine.in_zone, **AT}, timeout=60))
    with pytest.raises(exceptions.BadRequest, match="is not ready"):
        engine.instances.reset_unary({**engine.in_zone, **AT}, timeout=60)


def test_some_changes_require_stopped_instance(engine: Any) -> None:
    kind = f"zones/{engine.in_zone['zone']}/machineTypes/n1-standard-8"

    def change_type() -> Any:
        body = {"instances_set_machine_type_request_resource": {"machine_type": kind}}
        return engine.instances.set_machine_type_unary({**engine.in_zone, **AT, **body}, timeout=60)

    def change_account() -> Any:
        account = {"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        body = {"instances_set_service_account_request_resource": account}
        request = {**engine.in_zone, **AT, **body}
        return engine.instances.set_service_account_unary(request, timeout=60)

    def change_model() -> Any:
        body = {"scheduling_resource": {"provisioning_model": "SPOT", "automatic_restart": False}}
        return engine.instances.set_scheduling_unary({**engine.in_zone, **AT, **body}, timeout=60)

    def change_boot() -> Any:
        body = {"shielded_instance_config_resource": {"enable_secure_boot": True}}
        request = {**engine.in_zone, **AT, **body}
        return engine.instances.update_shielded_instance_config_unary(request, timeout=60)

    changes = (change_type, change_account, change_model, change_boot)
    engine.wait_ok(engine.insert(engine.controller(service_accounts=[])))
    for change in changes:
        with pytest.raises(exceptions.BadRequest, match="must be stopped"):
            change()
    engine.wait_ok(engine.instances.stop_unary({**engine.in_zone, **AT}, timeout=60))
    for change in changes:
        engine.wait_ok(change())
    engine.wait_ok(engine.instances.start_unary({**engine.in_zone, **AT}, timeout=60))
    instance = engine.get()
    assert instance.machine_type.endswith("/machineTypes/n1-standard-8")
    assert instance.scheduling.preemptible is True
    config = instance.shielded_instance_config
    assert (config.enable_secure_boot, config.enable_vtpm) == (True, True)
    spec = engine.cloud.host.specs[NAME]
    assert spec.machine_type == "n1-standard-8"
    assert spec.service_account == instance.service_accounts[0].email != ""


def test_update_of_whole_instance_changes_its_description_alone(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller(description="first")))

    def update(instance: Any) -> Any:
        request = {**engine.in_zone, **AT, "instance_resource": instance}
        return engine.instances.update_unary(request, timeout=60)

    for text in ("zweite", ""):
        instance = engine.get()
        instance.description = text
        engine.wait_ok(update(instance))
        assert engine.get().description == text
    instance.can_ip_forward = True
    with pytest.raises(exceptions.MethodNotImplemented, match="canIpForward"):
        update(instance)


def test_update_changes_machine_type(engine: Any) -> None:
    """A running instance is restarted, if the request allows it."""
    engine.wait_ok(engine.insert(engine.controller()))

    def update(kind: str, **more: Any) -> Any:
        instance = engine.get()
        instance.machine_type = instance.machine_type.rpartition("/")[0] + f"/{kind}"
        request = {**engine.in_zone, **AT, "instance_resource": instance, **more}
        return engine.instances.update_unary(request, timeout=60)

    with pytest.raises(exceptions.BadRequest, match="needs the action RESTART"):
        update("n1-standard-8", most_disruptive_allowed_action="REFRESH")
    engine.wait_ok(update("n1-standard-8"))
    assert engine.cloud.host.called.count("boot") == 2
    assert engine.cloud.host.specs[NAME].machine_type == "n1-standard-8"
    engine.wait_ok(engine.instances.stop_unary({**engine.in_zone, **AT}, timeout=60))
    operation = engine.wait_ok(update("custom-4-819200-ext", minimal_action="REFRESH"))
    assert operation.operation_type == "update"
    instance = engine.get()
    assert (instance.status, engine.cloud.host.called.count("boot")) == ("TERMINATED", 2)
    assert instance.machine_type.endswith("/machineTypes/custom-4-819200-ext")
    with pytest.raises(exceptions.BadRequest, match="does not exist in zone"):
        update("n9-standard-1")


def test_update_restarts_if_asked(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    request = {**engine.in_zone, **AT, "instance_resource": engine.get()}
    engine.wait_ok(
        engine.instances.update_unary({**request, "minimal_action": "RESTART"}, timeout=60)
    )
    assert engine.cloud.host.called.count("boot") == 2
    with pytest.raises(exceptions.BadRequest, match="minimalAction"):
        engine.instances.update_unary({**request, "minimal_action": "INVALID"}, timeout=60)


KEY = base64.b64encode(b"k" * 32).decode()


def test_encrypted_instance_starts_with_the_key_of_its_disk(engine: Any) -> None:
    body = engine.controller()
    body["disks"][0]["disk_encryption_key"] = {"raw_key": KEY}
    engine.wait_ok(engine.insert(body))
    engine.wait_ok(engine.instances.stop_unary({**engine.in_zone, **AT}, timeout=60))
    source = engine.get().disks[0].source

    def start(*disks: dict[str, Any]) -> Any:
        field = "instances_start_with_encryption_key_request_resource"
        request = {**engine.in_zone, **AT, field: {"disks": disks}}
        return engine.instances.start_with_encryption_key_unary(request, timeout=60)

    with pytest.raises(exceptions.BadRequest, match="must be provided"):
        start()
    other = base64.b64encode(b"x" * 32).decode()
    with pytest.raises(exceptions.BadRequest, match="does not match"):
        start({"source": source, "disk_encryption_key": {"raw_key": other}})
    with pytest.raises(exceptions.BadRequest, match="not a disk of the instance"):
        start({"source": source + "x", "disk_encryption_key": {"raw_key": KEY}})
    with pytest.raises(exceptions.MethodNotImplemented, match="kmsKeyName"):
        start({"source": source, "disk_encryption_key": {"kms_key_name": "x"}})
    operation = start({"source": source, "disk_encryption_key": {"raw_key": KEY}})
    engine.wait_ok(operation)
    assert operation.operation_type == "startWithEncryptionKey"
    assert engine.get().status == "RUNNING"


def test_template_takes_disks_of_an_instance_as_configured(engine: Any) -> None:
    body = engine.controller()
    body["disks"][0]["device_name"] = "boot"
    body["disks"] += [
        {"initialize_params": {"disk_size_gb": 20}, "device_name": f"disk-{number}"}
        for number in (1, 2)
    ]
    engine.wait_ok(engine.insert(body))

    def insert(name: str, *configs: dict[str, Any]) -> Any:
        params = {"disk_configs": configs}
        resource = {"name": name, "source_instance": engine.get().self_link}
        resource |= {"source_instance_params": params}
        request = {"project": "local-project", "instance_template_resource": resource}
        engine.wait_ok(engine.instance_templates.insert_unary(request, timeout=60))
        request = {"project": "local-project", "instance_template": name}
        return engine.instance_templates.get(request, timeout=60)

    image = "projects/rocky-linux-cloud/global/images/family/rocky-linux-8"
    template = insert(
        "custom",
        {"device_name": "boot", "instantiate_from": "CUSTOM_IMAGE", "custom_image": image},
        {"device_name": "disk-1", "instantiate_from": "DO_NOT_INCLUDE"},
        {"device_name": "disk-2", "auto_delete": True},
    )
    boot, data = template.properties.disks
    assert (boot.initialize_params.source_image, boot.disk_size_gb) == (image, 50)
    assert (data.device_name, data.auto_delete) == ("disk-2", True)
    assert len(template.source_instance_params.disk_configs) == 3
    template = insert("family", {"device_name": "boot", "instantiate_from": "SOURCE_IMAGE_FAMILY"})
    boot, *others = template.properties.disks
    assert boot.initialize_params.source_image.endswith("/images/family/ubuntu-2204-lts")
    assert len(others) == 2
    for config, text in (
        ({"device_name": "missing"}, "name of one disk"),
        ({"device_name": "boot", "instantiate_from": "BLANK"}, "boot disk needs an image"),
        ({"device_name": "boot", "instantiate_from": "CUSTOM_IMAGE"}, "CUSTOM_IMAGE"),
        ({"device_name": "disk-1", "instantiate_from": "SOURCE_IMAGE"}, "not made of an image"),
        ({"device_name": "disk-1", "instantiate_from": "ATTACH_READ_ONLY"}, "read-only"),
    ):
        with pytest.raises(exceptions.BadRequest, match=text):
            insert("wrong", config)


def test_usage_is_exported_to_an_existing_bucket(engine: Any) -> None:
    def export(**location: str) -> Any:
        request = {"project": "local-project", "usage_export_location_resource": location}
        return engine.projects.set_usage_export_bucket_unary(request, timeout=60)

    def location() -> tuple[str, str]:
        project = engine.projects.get({"project": "local-project"}, timeout=60)
        return (
            project.usage_export_location.bucket_name,
            project.usage_export_location.report_name_prefix,
        )

    assert location() == ("", "")
    with pytest.raises(exceptions.BadRequest, match="bucket resource cannot be found"):
        export(bucket_name="reports")
    engine.cloud.storage().create_bucket("reports")
    operation = engine.wait_ok(export(bucket_name="reports", report_name_prefix="ours"))
    assert operation.operation_type == "setUsageExportBucket"
    assert location() == ("reports", "ours")
    engine.wait_ok(export(bucket_name="gs://reports"))
    assert location() == ("gs://reports", "")
    engine.wait_ok(export())
    assert location() == ("", "")


def test_template_of_existing_instance_has_its_properties(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    templates = engine.instance_templates
    source = engine.get()

    def insert(name: str, reference: str) -> Any:
        resource = {"name": name, "source_instance": reference}
        request = {"project": "local-project", "instance_template_resource": resource}
        return templates.insert_unary(request, timeout=60)

    engine.wait_ok(insert("same", source.self_link))
    template = templates.get(project="local-project", instance_template="same", timeout=60)
    assert template.source_instance == source.self_link
    properties = template.properties
    assert properties.machine_type == source.machine_type.rpartition("/")[2]
    assert properties.disks[0].boot
    assert properties.disks[0].initialize_params.source_image
    assert properties.metadata.items == source.metadata.items
    with pytest.raises(exceptions.BadRequest, match="sourceInstance"):
        insert("other", "zones/europe-west4-a/instances/nobody")


def test_setting_service_account_requires_act_as(engine: Any) -> None:
    ann = Member(engine.cloud, "ann")
    engine.wait_ok(engine.insert(engine.controller(service_accounts=[])))
    engine.wait_ok(engine.instances.stop_unary({**engine.in_zone, **AT}, timeout=60))
    role = make_role(engine.cloud, "dresser", ["compute.instances.setServiceAccount"])
    grant(engine.cloud, "projects/local-project", role, ann.name)
    path = f"/compute/v1/{NAME}/setServiceAccount"
    status, text = ann.status_and_message("POST", path, json={"email": "default", "scopes": []})
    assert status in (400, 403)
    assert "compute@developer.gserviceaccount.com" in text
    grant(engine.cloud, "projects/local-project", "roles/iam.serviceAccountUser", ann.name)
    status, text = ann.status_and_message("POST", path, json={"email": "default", "scopes": []})
    assert status == 200, text


def test_set_scheduling_keeps_omitted_fields(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    for body in ({"on_host_maintenance": "TERMINATE"}, {"automatic_restart": False}):
        request = {**engine.in_zone, **AT, "scheduling_resource": body}
        engine.wait_ok(engine.instances.set_scheduling_unary(request, timeout=60))
    scheduling = engine.get().scheduling
    assert (scheduling.on_host_maintenance, scheduling.automatic_restart) == (
        "TERMINATE",
        False,
    )


def test_disk_without_auto_delete_survives_instance(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    request = {**engine.in_zone, **AT, "device_name": "persistent-disk-0", "auto_delete": False}
    wrong = {**request, "device_name": "none"}
    with pytest.raises(exceptions.BadRequest, match="No attached disk found"):
        engine.instances.set_disk_auto_delete_unary(wrong, timeout=60)
    engine.wait_ok(engine.instances.set_disk_auto_delete_unary(request, timeout=60))
    engine.wait_ok(engine.instances.delete_unary({**engine.in_zone, **AT}, timeout=60))
    assert [disk.name for disk in engine.disks.list(engine.in_zone)] == ["controller"]


def test_deletion_protection_defaults_to_on(engine: Any) -> None:
    def protect(**more: Any) -> Any:
        request = {"project": engine.in_zone["project"], "zone": engine.in_zone["zone"], **more}
        client = engine.instances
        return client.set_deletion_protection_unary({**request, "resource": "controller"})

    engine.wait_ok(engine.insert(engine.controller()))
    engine.wait_ok(protect())
    with pytest.raises(exceptions.BadRequest, match="protected against deletion"):
        engine.instances.delete_unary({**engine.in_zone, **AT}, timeout=60)
    engine.wait_ok(protect(deletion_protection=False))
    engine.wait_ok(engine.instances.delete_unary({**engine.in_zone, **AT}, timeout=60))


def test_serial_output_resumes_at_offset(engine: Any) -> None:
    def read(**more: int) -> Any:
        return engine.instances.get_serial_port_output({**engine.in_zone, **AT, **more})

    engine.wait_ok(engine.insert(engine.controller()))
    # The host of these tests writes "<name> says 1" to every console.
    whole = read()
    assert whole.contents == f"{NAME} says 1\n"
    assert (whole.start, whole.next_) == (0, len(whole.contents))
    rest = read(start=len(NAME))
    assert (rest.contents, rest.next_) == (" says 1\n", whole.next_)
    assert read(start=whole.next_).contents == ""
    assert read(port=2).contents == ""


def test_disks_resize_and_list_types(engine: Any) -> None:
    def resize(size: int) -> Any:
        body = {"disks_resize_request_resource": {"size_gb": size}}
        return engine.disks.resize_unary({**engine.in_zone, "disk": "data", **body}, timeout=60)

    kind = f"zones/{engine.in_zone['zone']}/diskTypes/pd-ssd"
    disk_spec = {"name": "data", "size_gb": 20, "type_": kind}
    engine.wait_ok(engine.disks.insert_unary({**engine.in_zone, "disk_resource": disk_spec}))
    with pytest.raises(exceptions.BadRequest, match="sizeGb"):
        resize(19)
    engine.wait_ok(resize(40))
    disk = engine.disks.get({**engine.in_zone, "disk": "data"})
    assert disk.size_gb == 40
    (name,) = (disk_type.name for disk_type in engine.disk_types.list(engine.in_zone)
               if disk_type.self_link == disk.type_)  # fmt: skip
    details = engine.disk_types.get({**engine.in_zone, "disk_type": name})
    assert details.valid_disk_size == "10GB-65536GB"
    with pytest.raises(exceptions.NotFound):
        engine.disk_types.get({**engine.in_zone, "disk_type": "floppy"})
    request = {"project": engine.in_zone["project"], "filter": "name=pd-ssd"}
    scopes = dict(engine.disk_types.aggregated_list(request))
    assert len(scopes["zones/europe-west4-a"].disk_types) == 1


def test_effective_firewalls_of_network(engine: Any) -> None:
    network = {"name": "other", "auto_create_subnetworks": False}
    request = {"project": engine.in_zone["project"], "network_resource": network}
    engine.wait_ok(engine.networks.insert_unary(request))
    rule = {
        "name": "web",
        "network": "global/networks/other",
        "allowed": [{"I_p_protocol": "tcp", "ports": ["80", "8000-8080"]}],
    }
    request = {"project": engine.in_zone["project"], "firewall_resource": rule}
    engine.wait_ok(engine.firewalls.insert_unary(request))
    request_network = {"project": engine.in_zone["project"], "network": "other"}
    (rule_found,) = engine.networks.get_effective_firewalls(request_network).firewalls
    assert rule_found.name == "web"
    with pytest.raises(exceptions.NotFound):
        list(engine.networks.list_peering_routes({**request_network, "peering_name": "none"}))


@pytest.mark.parametrize(
    ("protocol", "port"),
    [("tcp", "65536"), ("tcp", "90-80"), ("udp", "http"), ("icmp", "8"), ("all", "22")],
)
def test_invalid_firewall_ports_are_rejected(engine: Any, protocol: str, port: str) -> None:
    rule = {"name": "web", "allowed": [{"I_p_protocol": protocol, "ports": [port]}]}
    request = {"project": engine.in_zone["project"], "firewall_resource": rule}
    with pytest.raises(exceptions.BadRequest, match=r"resource\.allowed\[0\]\.ports"):
        engine.firewalls.insert_unary(request)


async def test_subnetwork_list_builds_only_requested_page(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resources that are not on the page are not built: a list of 12,000 took seconds."""
    subnetworks = engine.cloud.server.registry.service("compute").subnetworks
    built: list[str] = []
    show = subnetworks.show
    monkeypatch.setattr(
        subnetworks, "show", lambda name, row: built.append(name) or show(name, row)
    )

    def run() -> None:
        for number in range(5):
            request = {"project": engine.in_zone["project"], "network_resource": {
                "name": f"auto-{number}", "auto_create_subnetworks": True}}  # fmt: skip
            engine.wait_ok(engine.networks.insert_unary(request))
        request = compute_v1.AggregatedListSubnetworksRequest(
            project=engine.in_zone["project"], max_results=30
        )
        first = next(iter(engine.subnetworks.aggregated_list(request).pages))
        page = [
            subnetwork.self_link for part in first.items.values() for subnetwork in part.subnetworks
        ]
        assert len(page) == len(set(page)) == 30
        assert len(built) == 30
        all_links = [
            subnetwork.self_link
            for _, part in engine.subnetworks.aggregated_list(request)
            for subnetwork in part.subnetworks
        ]
        assert all_links[:30] == page
        regions = list(engine.regions.list({"project": engine.in_zone["project"]}))
        assert len(all_links) == len(set(all_links)) == 6 * len(regions)  # with the default network

    await asyncio.to_thread(run)


def test_policy_demands_shielded_instances(engine: Any) -> None:
    """The words: hashicorp/packer#7846."""
    policies = {"compute.requireShieldedVm": True}
    remote_control.change_settings(engine.cloud.local_cloud, policies=policies)
    message = "Secure Boot is not enabled in the 'shielded_instance_config' field"
    with pytest.raises(exceptions.PreconditionFailed, match=message):
        engine.insert(engine.controller())
    names = ("enable_secure_boot", "enable_vtpm", "enable_integrity_monitoring")
    config = {"shielded_instance_config": dict.fromkeys(names, True)}
    engine.wait_ok(engine.insert({**engine.controller(), **config}))
