"""Fixtures for Compute Engine tests with its official clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from google.cloud import compute_v1

from tests.support.locations import PROJECT, REGION, ZONE

UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"


class Engine:
    """Clients of one local cloud. They block: call them in `asyncio.to_thread`."""

    link = "https://www.googleapis.com/compute/v1/"
    in_zone: Mapping[str, str] = {"project": PROJECT, "zone": ZONE}
    in_region: Mapping[str, str] = {"project": PROJECT, "region": REGION}

    def __init__(self, cloud: Any) -> None:
        self.cloud = cloud
        self._clients: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """`instances` is an InstancesClient, `zone_operations` a ZoneOperationsClient."""
        if name not in self._clients:
            camel = "".join(part.capitalize() for part in name.split("_"))
            client = getattr(compute_v1, f"{camel}Client")
            self._clients[name] = self.cloud.client(client)
        return self._clients[name]

    def wait(self, operation: Any) -> Any:
        """The finished operation, from the wait method of its scope."""
        request: dict[str, str] = {"project": PROJECT, "operation": operation.name}
        if operation.zone:
            request["zone"] = operation.zone.rpartition("/")[2]
            done = self.zone_operations.wait(request, timeout=60)
        elif operation.region:
            request["region"] = operation.region.rpartition("/")[2]
            done = self.region_operations.wait(request, timeout=60)
        else:
            done = self.global_operations.wait(request, timeout=60)
        assert done.status == compute_v1.Operation.Status.DONE
        return done

    def wait_ok(self, operation: Any) -> Any:
        """The finished operation, which must have succeeded."""
        done = self.wait(operation)
        assert not done.error.errors, done.error
        return done

    def wait_error(self, operation: Any) -> tuple[str, str]:
        """The error of a failed operation: code and message."""
        (error,) = self.wait(operation).error.errors
        return error.code, error.message

    @staticmethod
    def controller(name: str = "controller", zone: str = ZONE, **more: Any) -> dict[str, Any]:
        """The body of a controller instance."""
        boot = {
            "source_image": UBUNTU,
            "disk_size_gb": 50,
            "disk_type": f"zones/{zone}/diskTypes/pd-ssd",
        }
        network = {
            "network": "global/networks/default",
            "access_configs": [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}],
        }
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        return {
            "name": name,
            "machine_type": f"zones/{zone}/machineTypes/n1-standard-2",
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": boot}],
            "network_interfaces": [network],
            "service_accounts": [{"email": "default", "scopes": scopes}],
            **more,
        }

    def insert(self, resource: dict[str, Any], **more: Any) -> Any:
        """Begin inserting an instance."""
        request = {**self.in_zone, "instance_resource": resource, **more}
        return self.instances.insert_unary(request, timeout=60)

    def get(self, name: str = "controller") -> Any:
        return self.instances.get({**self.in_zone, "instance": name}, timeout=60)

    # Managed groups.

    def create_template(self, name: str = "bert", **properties: Any) -> str:
        """Create a template of small machines and return its link."""
        machine = self.controller()
        del machine["name"]
        machine["machine_type"] = "n1-standard-1"
        machine["disks"][0]["initialize_params"]["disk_type"] = "pd-ssd"
        resource = {"name": name, "properties": {**machine, **properties}}
        request = {"project": PROJECT, "instance_template_resource": resource}
        self.wait_ok(self.instance_templates.insert_unary(request, timeout=60))
        return f"{self.link}projects/{PROJECT}/global/instanceTemplates/{name}"

    def create_tpu_template(self, name: str = "bert", **scheduling: Any) -> str:
        """Create a template of machines with four chips of v6e, and return its link."""
        image = "projects/ubuntu-os-accelerator-images/global/images/family/"
        boot = {"source_image": f"{image}ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"}
        return self.create_template(
            name,
            machine_type="ct6e-standard-4t",
            scheduling={"on_host_maintenance": "TERMINATE", **scheduling},
            disks=[{"boot": True, "auto_delete": True, "initialize_params": boot}],
        )

    def insert_slice(self, size: int = 4, topology: str = "4x4", **more: Any) -> Any:
        """Begin creating a slice "bert" with the template "bert"."""
        policy = {"workload_policy": self.create_policy(topology=topology)}
        return self.insert_group(size=size, resource_policies=policy, **more)

    def create_policy(self, name: str = "bert", topology: str = "4x4") -> str:
        """Create a workload policy and return its link."""
        policy = {"type_": "HIGH_THROUGHPUT", "accelerator_topology": topology}
        resource = {"name": name, "workload_policy": policy}
        request = {**self.in_region, "resource_policy_resource": resource}
        self.wait_ok(self.resource_policies.insert_unary(request, timeout=60))
        return f"{self.link}projects/{PROJECT}/regions/{REGION}/resourcePolicies/{name}"

    def insert_group(self, name: str = "bert", *, size: int = 4, **more: Any) -> Any:
        """Begin creating a group of instances of the template "bert"."""
        template = f"projects/{PROJECT}/global/instanceTemplates/bert"
        resource = {"name": name, "target_size": size, "instance_template": template, **more}
        request = {**self.in_zone, "instance_group_manager_resource": resource}
        return self.instance_group_managers.insert_unary(request, timeout=60)

    def group(self, name: str = "bert") -> Any:
        request = {**self.in_zone, "instance_group_manager": name}
        return self.instance_group_managers.get(request, timeout=60)

    def managed_instances(self, name: str = "bert") -> list[Any]:
        request = {**self.in_zone, "instance_group_manager": name}
        return list(self.instance_group_managers.list_managed_instances(request, timeout=60))

    def wait_stable(self, name: str = "bert") -> Any:
        """The group once none of its instances changes."""
        return self.wait_group(lambda group: group.status.is_stable, name)

    def group_errors(self, name: str = "bert") -> list[Any]:
        request = {**self.in_zone, "instance_group_manager": name}
        return list(self.instance_group_managers.list_errors(request, timeout=60))

    def wait_group(self, condition: Any, name: str = "bert") -> Any:
        """The group once it meets the condition."""
        deadline = time.monotonic() + 30
        while not condition(group := self.group(name)):
            assert time.monotonic() < deadline, (group, self.managed_instances(name))
            time.sleep(0.02)
        return group

    def instance_names(self) -> list[str]:
        return [instance.name for instance in self.instances.list(self.in_zone)]


@pytest.fixture
async def engine(cloud: Any) -> Engine:
    return Engine(cloud)


@pytest.fixture
def make_engine() -> type[Engine]:
    return Engine
