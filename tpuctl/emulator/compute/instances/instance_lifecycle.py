"""The effects of instance operations on the stored row and its machine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.compute.core.collection import LabeledCollection, Row, Rows
from tpuctl.emulator.compute.core.context import DISKS, INSTANCES, ComputeContext
from tpuctl.emulator.compute.core.errors import failed
from tpuctl.emulator.compute.disks.content import boot_image
from tpuctl.emulator.compute.disks.disks import Disks
from tpuctl.emulator.compute.disks.public_images import Image
from tpuctl.emulator.compute.instances.capacity import Capacity
from tpuctl.emulator.compute.instances.instance_spec import Sources
from tpuctl.emulator.compute.instances.project import Projects
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.compute.offerings.machine_types import machine_type
from tpuctl.emulator.compute.offerings.scheduling import run_seconds
from tpuctl.emulator.machines.interface import MachineError, MachineSpec
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.wire.registry import Caller

log = logging.getLogger(__name__)

PORT_KEY = "tpuctl-ssh-port"  # metadata key, set if SSH is not on port 22 (TPU nodes use it too)
# Not a project's zone: no list contains these operations.
_INTERNAL_PARENT = "instances"
_MAX_CONCURRENT_BOOTS = 16
_ABORTABLE_VERBS = ("insert", "start", "stop", "reset", "preempted", "timeUp")


class InstanceMachines(LabeledCollection):
    """The part of the instances collection that creates, stops and describes machines."""

    kind = INSTANCES

    def __init__(
        self,
        context: ComputeContext,
        disks: Disks,
        subnetworks: Subnetworks,
        projects: Projects,
        capacity: Capacity,
    ) -> None:
        super().__init__(context)
        self.capacity = capacity
        self._disks = disks
        self._projects = projects
        self.sources = Sources(context, disks, subnetworks)
        self._host = context.registry.host
        self._boots = asyncio.Semaphore(_MAX_CONCURRENT_BOOTS)
        # Called when an instance has stopped or is gone, with the cause: "preempted", "timeUp", or
        # "" if somebody did it.
        self.on_end: Callable[[str, str], None] = lambda name, cause: None

    def verbs(self) -> dict[str, Effect]:
        changes = (
            *("setTags", "setScheduling", "setMachineType", "setServiceAccount"),
            *("setDiskAutoDelete", "setDeletionProtection", "update"),
            "updateShieldedInstanceConfig",
        )
        return {
            **super().verbs(),
            "insert": Effect(self._finish_start, self._create_machine, self._fail_insert),
            "refused": Effect(self._raise_refusal),
            "start": Effect(self._finish_start, self._start_machine, self._fail_start),
            "stop": Effect(self._finish_stop, self._shut_machine),
            "preempted": Effect(
                partial(self._finish_interruption, "preempted"), self._shut_preempted
            ),
            "limit": Effect(self._finish_limit),
            "timeUp": Effect(partial(self._finish_interruption, "timeUp"), self._shut_after_limit),
            "nothing": Effect(lambda arguments: None),
            "delete": Effect(self._finish_deletion, self._discard_machine),
            "setMetadata": Effect(self._finish_set_metadata),
            "reset": Effect(lambda arguments: None, self._reset_machine),
            "updateAndRestart": Effect(self.finish_patch, self._restart_changed),
            **dict.fromkeys(changes, Effect(self.finish_patch)),
            "attachDisk": Effect(self._finish_attach_disk),
            "detachDisk": Effect(self._finish_detach_disk),
        }

    def save(self, name: str, row: Row) -> None:
        self.store.put_json(self.kind, name, row)

    def change(self, name: str, **changes: Any) -> Row | None:
        """Save the changes and return the row; None if the instance does not exist."""
        row = self.find(name)
        if row is not None:
            row = {**row, **changes}
            self.save(name, row)
        return row

    def abort_pending(self, name: str) -> None:
        """Abort the other pending operations of an instance that is being deleted."""
        operations = self.context.registry.operations
        for verb in _ABORTABLE_VERBS:
            for record in operations.pending(f"{self.kind}.{verb}"):
                if record.arguments["target"] == name:
                    text = f"The resource '{name}' is being deleted"
                    operations.abort(record.name, failed("RESOURCE_NOT_READY", text))

    # Machines.

    async def spec(self, name: str, row: Row) -> MachineSpec:
        """The spec of the machine, from the instance's current row."""
        _, project_id, _, zone, _, instance_id = name.split("/")
        project = self.context.registry.projects.find(project_id)
        assert project is not None, "projects are never removed"
        # The slice that it is part of, for instances of a managed group with a topology.
        part = row.get("slice", {"members": [name]})
        endpoints = await self._host.reserve(part["members"])
        account = row["serviceAccounts"][0] if row["serviceAccounts"] else None
        email = account["email"] if account else ""
        access = self.context.registry.access
        machine_type_name = row["machineType"].rpartition("/")[2]
        machine = machine_type(machine_type_name)
        tpu = machine.tpu if machine is not None else None
        image = self._image(row)
        return MachineSpec(
            name=name,
            node_id=instance_id,
            worker=part["members"].index(name),
            endpoints=tuple(endpoints),
            project=project_id,
            project_number=project["number"],
            zone=zone,
            accelerator_type=tpu.slice_type(len(part["members"])) if tpu is not None else "",
            runtime_version="",
            service_account=email,
            access_token=access.token_for(email, account["scopes"]) if account else "",
            metadata=self._metadata(project_id, row),
            kind="instance",
            tensorflow=image.tensorflow if image is not None else None,
            python=image.python if image is not None else None,
            machine_type=machine_type_name,
            hostname=row.get("hostname", ""),
            scopes=tuple(account["scopes"]) if account else (),
            members=tuple(part["members"]),
            topology=part.get("topology", ""),
            boot_seconds=self.context.registry.pace.seconds("compute.boot") if tpu else 0.0,
        )

    def _metadata(self, project: str, row: Row) -> dict[str, str]:
        """The instance's metadata plus the project keys that the guest OS reads.

        SSH keys of both apply unless the instance blocks the project's; the project's startup
        script runs if the instance has none (cloud.google.com/compute/docs, "SSH keys" and
        "startup scripts").
        """
        metadata = {item["key"]: item["value"] for item in row["metadata"]["items"]}
        project_metadata = {item["key"]: item["value"] for item in self._projects.items(project)}
        if (
            metadata.get("block-project-ssh-keys", "").lower() != "true"
            and "ssh-keys" in project_metadata
        ):
            keys = [metadata["ssh-keys"]] if "ssh-keys" in metadata else []
            metadata["ssh-keys"] = "\n".join([*keys, project_metadata["ssh-keys"]])
        for key in ("startup-script", "enable-guest-attributes", "enable-oslogin"):
            if key in project_metadata:
                metadata.setdefault(key, project_metadata[key])
        return metadata

    def _image(self, row: Row) -> Image | None:
        boot_disk: Row = next((disk for disk in row["disks"] if disk["boot"]), {})
        disk = self._disks.find(boot_disk.get("source", ""))
        return None if disk is None else boot_image(disk)

    async def resume(self) -> None:
        """Boot every machine that was running when the last process exited."""
        for name, row in self.items(""):
            if row["status"] == "RUNNING":
                self.context.registry.in_background(self._reboot_after_restart(name))

    async def _reboot_after_restart(self, name: str) -> None:
        try:
            await self._boot_machine({"target": name}, lambda text: None)
        except ApiError as error:
            log.error("%s: failed to restart the machine: %s", name, error.message)
            row = self.find(name)
            if row is not None and row["status"] == "RUNNING":
                self.change(name, status="TERMINATED", statusMessage=error.message)

    def reconfigure_all(self, project: str) -> None:
        """Pass changed project metadata to the project's machines."""
        for name, row in self.items(f"projects/{project}/"):
            if row["status"] == "RUNNING":
                self.context.registry.in_background(self._reconfigure(name))

    async def _reconfigure(self, name: str) -> None:
        row = self.find(name)
        if row is not None:
            self._host.reconfigure(await self.spec(name, row))

    async def _create_machine(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        try:
            await self._wait_for_capacity(arguments)
            await self._pause(arguments["target"])
            self.change(arguments["target"], status="STAGING")
            await self._start_machine(arguments, report)
        except Exception:
            # Before the failure is recorded, so that a restarted server retries the cleanup.
            await self._host.discard(arguments["target"])
            raise

    async def _wait_for_capacity(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = self.find(name)
        if row is not None and row["status"] == "PENDING":
            self.change(name, **await self.capacity.wait(name, row, arguments["wait_until"]))

    async def _start_machine(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._pause(arguments["target"])
        await self._boot_machine(arguments, report)

    async def _pause(self, name: str) -> None:
        """Of an instance with chips, each state takes its time, and it boots when it is about to be
        RUNNING: it accepts logins after that. Others boot at once, while their operation runs."""
        row = self.find(name)
        if row is not None and catalog.is_tpu_machine(row["machineType"].rpartition("/")[2]):
            await asyncio.sleep(self.context.registry.pace.seconds(f"{self.kind}.insert") / 2)

    async def _boot_machine(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        name = arguments["target"]
        row = self.find(name)
        if row is None:
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)
        try:
            async with self._boots:
                await self._host.boot(await self.spec(name, row), report)
        except MachineError as error:
            text = f"The machine of '{name}' could not start: {error}"
            raise failed("INTERNAL_ERROR", text, 500) from error

    async def _reset_machine(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._host.shut_down(arguments["target"])
        await self._boot_machine(arguments, report)

    async def _restart_changed(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        self.change(arguments["target"], **arguments["row"])
        await self._reset_machine(arguments, report)

    async def _shut_machine(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._host.shut_down(arguments["target"])

    async def _shut_preempted(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._host.preempt(arguments["target"], float(arguments["notice"]))
        await self._discard_if_deleted(arguments["target"])

    async def _shut_after_limit(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._host.shut_down(arguments["target"])
        await self._discard_if_deleted(arguments["target"])

    async def _discard_if_deleted(self, name: str) -> None:
        """Discard the machine of an interrupted instance that is to be deleted."""
        row = self.find(name)
        if row is not None and row["scheduling"].get("instanceTerminationAction") == "DELETE":
            await self._host.discard(name)

    async def _discard_machine(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._host.discard(arguments["target"])

    # Effects: finish an operation.

    def _raise_refusal(self, arguments: Arguments) -> None:
        raise failed(**arguments["refusal"])

    def _finish_start(self, arguments: Arguments) -> None:
        """The time that it may run restarts with each start."""
        name, now = arguments["target"], time.time()
        row = self.change(name, status="RUNNING", lastStartTimestamp=pacific_text(now))
        seconds = run_seconds(row["scheduling"]) if row is not None else None
        if seconds is not None:
            limit = {"target": name, "run_end": now + seconds}
            self.change(name, run_end=limit["run_end"])
            self.context.registry.operations.begin(
                _INTERNAL_PARENT, f"{self.kind}.limit", limit, seconds
            )

    def _finish_limit(self, arguments: Arguments) -> None:
        """Stop or delete an instance that has run for as long as it may."""
        name = arguments["target"]
        row = self.find(name)
        if row is None or row["status"] != "RUNNING" or row.get("run_end") != arguments["run_end"]:
            return  # stopped or replaced meanwhile
        action = row["scheduling"]["instanceTerminationAction"]
        self.change(name, status="STOPPING")
        self.begin("timeUp", name, Caller("system"), {}, shown_verb=action.lower())

    def _fail_insert(self, arguments: Arguments, error: ApiError) -> None:
        """Remove the instance of a failed insertion, unless a deletion is pending."""
        row = self.find(arguments["target"])
        if row is not None and not row.get("deleting"):
            self.remove(arguments["target"], arguments["disks"])

    def remove(self, name: str, disks: list[str]) -> None:
        self.store.delete(self.kind, name)
        for disk in disks:
            self.store.delete(DISKS, disk)

    def _finish_stop(self, arguments: Arguments) -> None:
        self._terminate(arguments["target"])
        self.on_end(arguments["target"], "")

    def _terminate(self, name: str) -> None:
        self.change(name, status="TERMINATED", lastStopTimestamp=pacific_text())

    def _fail_start(self, arguments: Arguments, error: ApiError) -> None:
        row = self.find(arguments["target"])
        if row is not None and not row.get("deleting"):
            self.change(arguments["target"], status="TERMINATED")

    def _finish_interruption(self, cause: str, arguments: Arguments) -> None:
        row = self.find(arguments["target"])
        if row is not None and row["scheduling"].get("instanceTerminationAction") == "DELETE":
            self._delete_row(arguments["target"])
        else:
            self._terminate(arguments["target"])
        self.on_end(arguments["target"], cause)

    def _finish_deletion(self, arguments: Arguments) -> None:
        self._delete_row(arguments["target"])
        self.on_end(arguments["target"], "")

    def _delete_row(self, name: str) -> None:
        row = self.find(name)
        if row is not None:
            self.stamp_disks(row["disks"], "lastDetachTimestamp")
            self.store.delete(self.kind, name)
            for disk in row["disks"]:  # a local SSD has no source
                is_deleted = disk["autoDelete"] and "source" in disk
                if is_deleted and not self._disks.users_of(disk["source"]):
                    self.store.delete(DISKS, disk["source"])

    def _finish_set_metadata(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = self.require(name)
        items = arguments["items"]
        if all(item["key"] != PORT_KEY for item in items):  # set by the local cloud, not the client
            items += [item for item in row["metadata"]["items"] if item["key"] == PORT_KEY]
        self.save(name, {**row, "metadata": {"items": items}})
        if row["status"] == "RUNNING":
            self.context.registry.in_background(self._reconfigure(name))

    def _finish_attach_disk(self, arguments: Arguments) -> None:
        if arguments.get("force"):
            self.detach_from_users(arguments["disk"]["source"])
        row = self.require(arguments["target"])
        disks = sorted([*row["disks"], arguments["disk"]], key=lambda disk: not disk["boot"])
        self.save(arguments["target"], {**row, "disks": disks})
        self.stamp_disks([arguments["disk"]], "lastAttachTimestamp")

    def detach_from_users(self, disk: str) -> None:
        """Detach a disk from its instances, which can no longer write to it (docs.cloud.google.com/
        compute/docs/disks/repd-failover, "force-attach"); how they are shown then is a guess."""
        for user in self._disks.users_of(disk):
            row = self.find(user) or {"disks": []}
            others = [each for each in row["disks"] if each.get("source") != disk]
            self.change(user, disks=others)

    def _finish_detach_disk(self, arguments: Arguments) -> None:
        row = self.require(arguments["target"])
        disks = [disk for disk in row["disks"] if disk.get("deviceName") != arguments["device"]]
        self.save(arguments["target"], {**row, "disks": disks})
        self.stamp_disks(
            [disk for disk in row["disks"] if disk not in disks], "lastDetachTimestamp"
        )

    def stamp_disks(self, attachments: Rows, field: str) -> None:
        """Set when the disks were last attached or detached."""
        for attachment in attachments:
            disk = self._disks.find(attachment.get("source", ""))
            if disk is not None:
                disk[field] = pacific_text()
                self.store.put_json(DISKS, attachment["source"], disk)
