"""What a managed instance group of TPU machines is created from: an instance template, and a
workload policy with the topology of the slice. Both are regional and cannot be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict
from tpuctl.google_imports import compute_types
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, stack_of_description
from tpuctl.model.text.names import USER_LABEL
from tpuctl.model.text.ssh_key_lines import public_key_line
from tpuctl.polling import gather_all
from tpuctl.resources.base import Query, StackResource, name_taken, time_of
from tpuctl.resources.machines.compute_instance import metadata_values
from tpuctl.resources.machines.instance_metadata import prerequisites
from tpuctl.resources.network.network import Network, network_differences
from tpuctl.resources.tpu.tpu_machine_spec import machine_properties


class Part(NamedTuple):
    """An existing template or policy, and whether a group uses it."""

    resource: Any
    is_used: bool = False


async def get_group(resource: StackResource, name: str) -> Any | None:
    """The managed instance group of this name in the stack's zone."""
    where = {"project": resource.stack.project, "zone": resource.stack.zone}
    return await resource.find(
        "instance_group_managers", "get", **where, instance_group_manager=name
    )


class GroupPart(StackResource):
    """Named like its group, in the group's region. Recreated if it differs while it is unused."""

    group = "TPU"
    api = "compute"
    is_zonal = True
    collection: ClassVar[str]  # in lists: "instanceTemplates"
    client_name: ClassVar[str]
    noun: ClassVar[str]  # in messages: "template"
    noun_field: ClassVar[str]  # of a request, with its name

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.is_compute and stack.machine.hosts > 1

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        for region, part in query.described(cls.collection):
            if owner := stack_of_description(part.get("description", "")):
                created = time_of(part.get("creationTimestamp"))
                detail = cls.detail_of(part)
                yield InventoryItem(
                    cls, part["name"], owner, region, detail=detail, created=created
                )

    @classmethod
    def detail_of(cls, part: Mapping[str, Any]) -> str:
        """What a list of resources shows of it."""
        raise NotImplementedError

    def __init__(self, stack: Stack, cloud: Cloud, name: str, region: str = "") -> None:
        """`region` is that of a leftover, whose group has no zone then."""
        super().__init__(stack, cloud)
        self._name = name
        self._is_leftover = bool(region)
        self.region = region or stack.region

    @property
    def name(self) -> str:
        return self._name

    @property
    def where(self) -> dict[str, Any]:
        return {"project": self.stack.project, "region": self.region}

    async def observe(self) -> Part | None:
        if self._is_leftover:
            part, group = await self.get(), None
        else:
            part, group = await gather_all([self.get(), get_group(self, self.name)])
        return None if part is None else Part(part, group is not None)

    async def get(self) -> Any | None:
        return await self.find(
            self.client_name, "get", **self.where, **{self.noun_field: self.name}
        )

    def is_ours(self, observed: Part) -> bool:
        return bool(observed.resource.description == self.stack.names.ownership)

    def diff(self, observed: Part | None) -> Change:
        if observed is None:
            return self.create(self.purpose)
        if not self.is_ours(observed):
            raise name_taken(self, stack_of_description(observed.resource.description))
        difference = self.difference(observed)
        if difference is None:
            return self.nothing(f"{self.noun} exists")
        if observed.is_used:
            raise Conflict(
                "Node differs",
                f"{self.noun} {self.name} of the node has {difference}",
                hint="To recreate it, delete it first:\n    tpuctl down",
            )
        return self.create(f"recreating the {self.noun}, which differs and is unused")

    @property
    def purpose(self) -> str:
        """Why it is created."""
        raise NotImplementedError

    def difference(self, observed: Part) -> str | None:
        """How an existing one differs from the stack file; None if it does not."""
        raise NotImplementedError

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete()
            return
        observed = await self.observe()
        if observed is not None:
            if not self.diff(observed).is_work:
                return  # another program has created it in the meantime
            await self._delete()
        request = {**self.where, f"{self.noun_field}_resource": await self.body()}

        async def create() -> None:
            await self.insert(self.client_name, request, report)

        await self.create_or_adopt(create, self.observe, report, check=self.diff)

    async def body(self) -> dict[str, Any]:
        """Its fields."""
        raise NotImplementedError

    async def _delete(self) -> None:
        await self.finish(
            await self.find(
                self.client_name, "delete_unary", **self.where, **{self.noun_field: self.name}
            )
        )


class WorkloadPolicy(GroupPart):
    """Places the machines of a group as one slice of the stack's topology."""

    kind = "workload-policy"
    label = "workload policies"
    collection, client_name, noun = "resourcePolicies", "resource_policies", "workload policy"
    noun_field = "resource_policy"
    permissions = """
        read compute.viewer compute.resourcePolicies.get compute.resourcePolicies.list
        read compute.viewer compute.instanceGroupManagers.get
        create compute.instanceAdmin.v1 compute.resourcePolicies.create
        create compute.instanceAdmin.v1 compute.resourcePolicies.delete
        create compute.viewer compute.regionOperations.get
    """

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(stack, cloud, item.name, item.zone)

    @classmethod
    def detail_of(cls, part: Mapping[str, Any]) -> str:
        return str(part.get("workloadPolicy", {}).get("acceleratorTopology", ""))

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"bucket/{self.stack.bucket}"})

    @property
    def purpose(self) -> str:
        return f"one slice with topology {self.stack.machine.topology}"

    def difference(self, observed: Part) -> str | None:
        actual = observed.resource.workload_policy.accelerator_topology
        desired = self.stack.machine.topology
        if actual == desired:
            return None
        return f"topology {actual}, the stack file says {desired}"

    async def body(self) -> dict[str, Any]:
        topology = self.stack.machine.topology
        return {
            "name": self.name,
            "description": self.stack.names.ownership,
            "workload_policy": {"type_": "HIGH_THROUGHPUT", "accelerator_topology": topology},
        }


class GroupTemplate(GroupPart):
    """The machines of a group, with the stack's label, tag, account and key."""

    kind = "template"
    label = "instance templates"
    collection, client_name, noun = "instanceTemplates", "region_instance_templates", "template"
    noun_field = "instance_template"
    permissions = """
        read compute.viewer compute.instanceTemplates.get compute.instanceTemplates.list
        read compute.viewer compute.instanceGroupManagers.get
        create compute.instanceAdmin.v1 compute.instanceTemplates.create
        create compute.instanceAdmin.v1 compute.instanceTemplates.delete
        create compute.viewer compute.regionOperations.get
        create iam.serviceAccountUser iam.serviceAccounts.actAs
    """

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(Network(stack, cloud), str, item.name, item.zone)

    @classmethod
    def detail_of(cls, part: Mapping[str, Any]) -> str:
        return str(part.get("properties", {}).get("machineType", ""))

    def __init__(
        self, network: Network, public_key: Callable[[], str], name: str, region: str = ""
    ) -> None:
        super().__init__(network.stack, network.cloud, name, region)
        self.network = network
        self.public_key = public_key  # called on demand: generating a key is slow

    @property
    def after(self) -> frozenset[str]:
        return frozenset({self.network.address} | prerequisites(self.stack))

    @property
    def purpose(self) -> str:
        machine = self.stack.machine
        return f"for {machine.hosts} machines {machine.machine_type} with {machine.image}"

    def difference(self, observed: Part) -> str | None:
        """Of an unused template: its group updates the machines themselves, and compares the
        rest."""
        if observed.is_used:
            return None
        actual = observed.resource.properties
        network = actual.network_interfaces[0].network
        if any(network_differences(self.stack, network, "")):
            return "another network"
        desired = compute_types().InstanceProperties(self._properties(network.rpartition("/")[2]))
        is_same = _comparable(actual) == _comparable(desired)
        return None if is_same else "other properties"

    async def body(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.stack.names.ownership,
            "properties": self._properties(await self.network.usable_name()),
        }

    def _properties(self, network: str) -> dict[str, Any]:
        return machine_properties(
            self.stack,
            network,
            public_key_line(self.stack.user, self.public_key()),
            startup=self.cloud.endpoint.runs_startup_scripts,
        )


def _comparable(properties: Any) -> tuple[object, ...]:
    """What matters of a template's properties.

    Keys of `ssh-keys` do not: those of this computer are added to the machines; nor does who made
    it.
    """
    attached = properties.disks[0]
    disk = attached.initialize_params
    interface = properties.network_interfaces[0]
    scheduling = properties.scheduling
    metadata = metadata_values(properties)
    metadata.pop("ssh-keys", None)
    return (
        properties.machine_type,
        (disk.disk_size_gb, disk.disk_type, disk.source_image.partition("projects/")[2]),
        attached.disk_encryption_key.kms_key_name,
        properties.shielded_instance_config.enable_secure_boot,
        (interface.subnetwork.rpartition("/")[2], len(interface.access_configs)),
        [account.email for account in properties.service_accounts],
        {**properties.labels, USER_LABEL: ""},
        list(properties.tags.items),
        metadata,
        (scheduling.provisioning_model, scheduling.max_run_duration.seconds),
        list(properties.reservation_affinity.values),
    )
