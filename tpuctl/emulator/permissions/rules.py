"""What calls need beside the permission of their method: by the `+RULE` of `methods.toml`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpuctl.catalog import region_of
from tpuctl.emulator.permissions.needs import Need, Places, text_at
from tpuctl.emulator.store import Store

__all__ = ["Rules"]

ACT_AS = "iam.serviceAccounts.actAs"
_INSTANCES = "compute.instances"  # the kind of the store


class Rules:
    """Each takes the request and yields what it needs."""

    def __init__(self, store: Store, places: Places) -> None:
        self._store = store
        self._places = places
        self._rules: Mapping[str, Callable[[Any], Iterator[Need]]] = {
            "acts_as": self._acts_as,
            "acts_as_before": self._acts_as_before,
            "acts_as_next": self._acts_as_next,
            "billing_link": self._billing_link,
            "deleted_account": self._deleted_account,
            "disk": self._disk,
            "instance": self._instance,
            "instances": self._instances,
            "labels": self._labels,
            "new_project": self._new_project,
            "operation": self._operation,
            "snapshot_labels": self._snapshot_labels,
        }

    def needs(self, rule: str, request: Any) -> Iterator[Need]:
        return self._rules[rule](request)

    def _named(self, email: str, project: str) -> str:
        return self._places.default_account(project) if email in ("", "default") else email

    def _as(self, email: str) -> Need:
        return Need(ACT_AS, self._places.account(email), email, "actas")

    def _acts_as(self, request: Any) -> Iterator[Need]:
        """Whoever makes a TPU VM lets it act as an account, and must be allowed to act so."""
        project = text_at(request, "parent").split("/")[1:2]
        if not project:
            return
        if "node" in request.DESCRIPTOR.fields_by_name:
            nodes = [request.node]
        else:
            nodes = [one.node for one in request.queued_resource.tpu.node_spec]
        emails = {self._named(node.service_account.email, project[0]) for node in nodes}
        for email in sorted(emails):
            yield self._as(email)

    def _acts_as_before(self, request: Any) -> Iterator[Need]:
        """Metadata runs programs and lets people in: whoever changes them acts as the machine.

        cloud.google.com/compute/docs/access/service-accounts#user, and many public issues.
        """
        project = self._places.project(request.project)
        row = self._store.get_json(
            _INSTANCES, f"{project}/zones/{request.zone}/instances/{request.instance}"
        )
        for account in (row or {}).get("serviceAccounts", ()):
            yield self._as(account["email"])

    def _acts_as_next(self, request: Any) -> Iterator[Need]:
        """Of a machine that is given another account (the same page)."""
        email = request.instances_set_service_account_request_resource.email
        if email:
            yield self._as(self._named(email, request.project))

    def _instance(self, request: Any) -> Iterator[Need]:
        """cloud.google.com/compute/docs/instances/create-start-instance, "Required permissions"."""
        yield from self._machine(request, request.instance_resource.name, request.instance_resource)

    def _instances(self, request: Any) -> Iterator[Need]:
        """The same of each. Names to be numbered stand as their pattern."""
        wanted = request.bulk_insert_instance_resource_resource
        for name in sorted(wanted.per_instance_properties) or [wanted.name_pattern]:
            yield from self._machine(request, name, wanted.instance_properties)

    def _machine(self, request: Any, name: str, wanted: Any) -> Iterator[Need]:
        project = self._places.project(request.project)
        zone = f"{project}/zones/{request.zone}"
        machine = f"{zone}/instances/{name}"
        if wanted.metadata.items:
            yield Need("compute.instances.setMetadata", project, machine)
        if wanted.tags.items:
            yield Need("compute.instances.setTags", project, machine)
        if wanted.labels:
            yield Need("compute.instances.setLabels", project, machine)
        for number, disk in enumerate(wanted.disks):
            if disk.source:
                yield self._use(disk)
            elif disk.type_ != "SCRATCH":
                base = disk.initialize_params.disk_name
                own = base or (name if disk.boot else f"{name}-{number}")
                yield Need("compute.disks.create", project, f"{zone}/disks/{own}")
                if disk.initialize_params.labels:
                    yield Need("compute.disks.setLabels", project, f"{zone}/disks/{own}")
        for interface in wanted.network_interfaces:
            network = interface.network.rpartition("/")[2] or "default"
            subnetwork = interface.subnetwork.rpartition("/")[2] or network
            used = f"{project}/regions/{region_of(request.zone)}/subnetworks/{subnetwork}"
            yield Need("compute.subnetworks.use", project, used)
            if interface.access_configs:
                yield Need("compute.subnetworks.useExternalIp", project, used)
        for account in wanted.service_accounts:
            yield Need("compute.instances.setServiceAccount", project, machine)
            yield self._as(self._named(account.email, request.project))

    def _use(self, disk: Any) -> Need:
        match = re.search(r"projects/[^/]+/.+$", disk.source)
        name = match[0] if match else disk.source
        verb = "useReadOnly" if disk.mode == "READ_ONLY" else "use"
        return Need(f"compute.disks.{verb}", self._places.of(name), name)

    def _disk(self, request: Any) -> Iterator[Need]:
        """cloud.google.com/compute/docs/disks/attach-disks, "Required permissions"."""
        yield self._use(request.attached_disk_resource)

    def _labels(self, request: Any) -> Iterator[Need]:
        return self._labels_of(request, request.disk_resource, f"zones/{request.zone}/disks")

    def _snapshot_labels(self, request: Any) -> Iterator[Need]:
        return self._labels_of(request, request.snapshot_resource, "global/snapshots")

    def _labels_of(self, request: Any, resource: Any, collection: str) -> Iterator[Need]:
        """Of what is created with labels."""
        if resource.labels:
            project = self._places.project(request.project)
            kind = collection.rpartition("/")[2]
            name = f"{project}/{collection}/{resource.name}"
            yield Need(f"compute.{kind}.setLabels", project, name)

    def _new_project(self, request: Any) -> Iterator[Need]:
        """Of a project without parent nobody is asked."""
        parent = request.project.parent
        if not isinstance(parent, str):  # Resource Manager v1 has its type and id
            parent = f"{parent.type}s/{parent.id}" if parent.id else ""
        resource = self._places.of(parent)
        if resource:
            yield Need("resourcemanager.projects.create", resource, parent)

    def _billing_link(self, request: Any) -> Iterator[Need]:
        """cloud.google.com/billing/docs/how-to/modify-project, "Permissions required"."""
        project = self._places.of(request.name)
        account = request.project_billing_info.billing_account_name
        if not account:
            yield Need("resourcemanager.projects.deleteBillingAssignment", project, request.name)
            return
        yield Need("resourcemanager.projects.createBillingAssignment", project, request.name)
        resource = self._places.of(account)
        if resource:
            yield Need("billing.resourceAssociations.create", resource, account)

    def _deleted_account(self, request: Any) -> Iterator[Need]:
        name = request.name.rpartition("/")[2]
        resource = self._places.account(name)
        yield Need("iam.serviceAccounts.undelete", resource, request.name)

    def _operation(self, request: Any) -> Iterator[Need]:
        """By the API whose it is. Those about projects are told whoever knows their names."""
        verb = "get" if "filter" not in request.DESCRIPTOR.fields_by_name else "list"
        found = re.match(r"operations/acf\.p2-([0-9]+)-", request.name)
        if found is not None:
            project = self._places.project(found[1])
            yield Need(f"serviceusage.operations.{verb}", project, request.name)
        elif request.name.startswith("projects/"):
            yield Need(f"tpu.operations.{verb}", self._places.of(request.name), request.name)
