"""What an instance's operations do: its state in the store, its machine behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.emulator.compute.collection import Collection, Row
from tpuctl.emulator.compute.context import DISKS, INSTANCES, ComputeContext
from tpuctl.emulator.compute.disks import Disks
from tpuctl.emulator.compute.errors import failed
from tpuctl.emulator.compute.images import find_image
from tpuctl.emulator.compute.instance_spec import Sources
from tpuctl.emulator.compute.project import Projects
from tpuctl.emulator.compute.subnetworks import Subnetworks
from tpuctl.emulator.machines.interface import MachineError, MachineSpec
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.projects import now_text
from tpuctl.emulator.wire.registry import Caller

__all__ = ["PORT_KEY", "Machines"]

log = logging.getLogger(__name__)

PORT_KEY = "tpuctl-ssh-port"  # metadata, as of TPU nodes: where SSH is not at port 22
_BOOTS_AT_ONCE = 16
_OTHER_VERBS = ("insert", "start", "stop", "reset", "preempted")


class Machines(Collection):
    """The part of the collection of instances that makes, ends and describes machines."""

    kind = INSTANCES

    def __init__(
        self,
        context: ComputeContext,
        disks: Disks,
        subnetworks: Subnetworks,
        projects: Projects,
    ) -> None:
        super().__init__(context)
        self._disks = disks
        self._projects = projects
        self._sources = Sources(context, disks, subnetworks)
        self._host = context.world.host
        self._boots = asyncio.Semaphore(_BOOTS_AT_ONCE)
        effects = {
            "insert": Effect(self._running, self._make, self._never_was),
            "refused": Effect(self._refused),
            "start": Effect(self._running, self._boot, self._stopped_again),
            "stop": Effect(self._stopped, self._shut),
            "preempted": Effect(self._preempted, self._shut_preempted),
            "nothing": Effect(lambda arguments: None),
            "delete": Effect(self._deleted, self._discard),
            "patch": Effect(self.patched),
            "setMetadata": Effect(self._metadata_set),
            "setLabels": Effect(self.patched),
            "setTags": Effect(self.patched),
            "reset": Effect(lambda arguments: None, self._reset),
            "setScheduling": Effect(self.patched),
            "setMachineType": Effect(self.patched),
            "setServiceAccount": Effect(self.patched),
            "setDiskAutoDelete": Effect(self.patched),
            "setDeletionProtection": Effect(self.patched),
            "attachDisk": Effect(self._disk_attached),
            "detachDisk": Effect(self._disk_detached),
        }
        self.effects: Mapping[str, Effect] = {
            f"{self.kind}.{verb}": effect for verb, effect in effects.items()
        }

    def save(self, name: str, row: Row) -> None:
        self.store.put_json(self.kind, name, row)

    def change(self, name: str, **changes: Any) -> Row | None:
        """The row with these changes, saved; None if the instance is gone."""
        row = self.find(name)
        if row is not None:
            row = {**row, **changes}
            self.save(name, row)
        return row

    def begin_on(
        self,
        effect: str,
        name: str,
        caller: Caller,
        arguments: Arguments,
        request_id: str = "",
        *,
        verb: str = "",
        step: str = "",
    ) -> Any:
        """Start an operation on an instance, by the name of its effect; `step` tells its pace."""
        row = self.find(name)
        if row is not None:
            arguments = {"target_id": row["id"], **arguments}
        kind = f"{self.kind}.{effect}"
        return self.context.begin(
            kind, verb or effect, name, step or kind, caller, arguments, request_id
        )

    def abort_pending(self, name: str) -> None:
        """A deletion ends whatever else was under way on the machine."""
        operations = self.context.world.operations
        for verb in _OTHER_VERBS:
            for record in operations.pending(f"{self.kind}.{verb}"):
                if record.arguments["target"] == name:
                    text = f"The resource '{name}' is being deleted"
                    operations.abort(record.name, failed("RESOURCE_NOT_READY", text))

    # Machines.

    async def spec(self, name: str, row: Row) -> MachineSpec:
        """What the machine has to know, from the instance as it stands."""
        _, project_id, _, zone, _, own = name.split("/")
        project = self.context.world.projects.find(project_id)
        assert project is not None, "projects are never removed"
        endpoints = await self._host.reserve([name])
        account = row["serviceAccounts"][0] if row["serviceAccounts"] else None
        email = account["email"] if account else ""
        access = self.context.world.access
        return MachineSpec(
            name=name,
            node_id=own,
            worker=0,
            endpoints=tuple(endpoints),
            project=project_id,
            project_number=project["number"],
            zone=zone,
            accelerator_type="",
            runtime_version="",
            service_account=email,
            access_token=access.token_for(email, account["scopes"]) if account else "",
            metadata=self._metadata(project_id, row),
            kind="instance",
            tensorflow=self._tensorflow(row),
            machine_type=row["machineType"].rpartition("/")[2],
            scopes=tuple(account["scopes"]) if account else (),
        )

    def _metadata(self, project: str, row: Row) -> dict[str, str]:
        """The instance's own, and of the project's what the system on a machine looks at.

        SSH keys of both count unless the instance blocks the project's; the project's startup
        script runs where the instance has none (cloud.google.com/compute/docs, "SSH keys" and
        "startup scripts").
        """
        own = {item["key"]: item["value"] for item in row["metadata"]["items"]}
        shared = {item["key"]: item["value"] for item in self._projects.items(project)}
        if own.get("block-project-ssh-keys", "").lower() != "true" and "ssh-keys" in shared:
            keys = [own["ssh-keys"]] if "ssh-keys" in own else []
            own["ssh-keys"] = "\n".join([*keys, shared["ssh-keys"]])
        for key in ("startup-script", "enable-guest-attributes"):
            if key in shared:
                own.setdefault(key, shared[key])
        return own

    def _tensorflow(self, row: Row) -> str | None:
        disk = self._disks.find(row["disks"][0]["source"])
        if disk is None or "sourceImage" not in disk:
            return None
        return find_image(disk["sourceImage"]).tensorflow

    async def resume(self) -> None:
        """Boot every machine that ran when the last process ended."""
        for name, row in self.items(""):
            if row["status"] == "RUNNING":
                self.context.world.in_background(self._boot_again(name))

    async def _boot_again(self, name: str) -> None:
        try:
            await self._boot({"target": name}, lambda text: None)
        except ApiError as error:
            log.error("%s: the machine did not come back: %s", name, error.message)
            row = self.find(name)
            if row is not None and row["status"] == "RUNNING":
                self.change(name, status="TERMINATED", statusMessage=error.message)

    def reconfigure_all(self, project: str) -> None:
        """Tell the project's machines that the metadata they share has changed."""
        for name, row in self.items(f"projects/{project}/"):
            if row["status"] == "RUNNING":
                self.context.world.in_background(self._reconfigure(name))

    async def _reconfigure(self, name: str) -> None:
        row = self.find(name)
        if row is not None:
            self._host.reconfigure(await self.spec(name, row))

    async def _make(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        try:
            self.change(arguments["target"], status="STAGING")
            await self._boot(arguments, tell)
        except Exception:
            # Before the failure is told, so that a server that ends here takes it up again.
            await self._host.discard(arguments["target"])
            raise

    async def _boot(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        name = arguments["target"]
        row = self.find(name)
        if row is None:
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)
        try:
            async with self._boots:
                await self._host.boot(await self.spec(name, row), tell)
        except MachineError as error:
            text = f"The machine of '{name}' could not start: {error}"
            raise failed("INTERNAL_ERROR", text, 500) from error

    async def _reset(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        await self._host.shut_down(arguments["target"])
        await self._boot(arguments, tell)

    async def _shut(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        await self._host.shut_down(arguments["target"])

    async def _shut_preempted(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        """The machine learns of it, and its programs have a moment before they are ended."""
        self._host.set_event(arguments["target"], "preempted", "TRUE")
        await asyncio.sleep(float(arguments["notice"]))
        row = self.find(arguments["target"])
        if row is not None and row["scheduling"].get("instanceTerminationAction") == "DELETE":
            await self._host.discard(arguments["target"])
        else:
            await self._host.shut_down(arguments["target"])

    async def _discard(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        await self.discard_machine(arguments["target"])

    async def discard_machine(self, name: str) -> None:
        await self._host.discard(name)

    # What ends an operation.

    def _refused(self, arguments: Arguments) -> None:
        raise failed(**arguments["refusal"])

    def _running(self, arguments: Arguments) -> None:
        self.change(arguments["target"], status="RUNNING", lastStartTimestamp=now_text())

    def _never_was(self, arguments: Arguments, error: ApiError) -> None:
        """An insertion that failed leaves nothing. A deletion under way ends by itself."""
        row = self.find(arguments["target"])
        if row is not None and not row.get("deleting"):
            self.remove(arguments["target"], arguments["disks"])

    def remove(self, name: str, disks: list[str]) -> None:
        self.store.delete(self.kind, name)
        for disk in disks:
            self.store.delete(DISKS, disk)

    def _stopped(self, arguments: Arguments) -> None:
        self.change(arguments["target"], status="TERMINATED", lastStopTimestamp=now_text())

    def _stopped_again(self, arguments: Arguments, error: ApiError) -> None:
        row = self.find(arguments["target"])
        if row is not None and not row.get("deleting"):
            self.change(arguments["target"], status="TERMINATED")

    def _preempted(self, arguments: Arguments) -> None:
        row = self.find(arguments["target"])
        if row is not None and row["scheduling"].get("instanceTerminationAction") == "DELETE":
            self._deleted(arguments)
        else:
            self._stopped(arguments)

    def _deleted(self, arguments: Arguments) -> None:
        row = self.find(arguments["target"])
        if row is not None:
            going = [disk["source"] for disk in row["disks"] if disk["autoDelete"]]
            self.remove(arguments["target"], going)

    def _metadata_set(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = self.must(name)
        items = arguments["items"]
        if all(item["key"] != PORT_KEY for item in items):  # the cloud's own, not the client's
            items += [item for item in row["metadata"]["items"] if item["key"] == PORT_KEY]
        self.save(name, {**row, "metadata": {"items": items}})
        if row["status"] == "RUNNING":
            self.context.world.in_background(self._reconfigure(name))

    def _disk_attached(self, arguments: Arguments) -> None:
        row = self.must(arguments["target"])
        self.save(arguments["target"], {**row, "disks": [*row["disks"], arguments["disk"]]})

    def _disk_detached(self, arguments: Arguments) -> None:
        row = self.must(arguments["target"])
        kept = [one for one in row["disks"] if one.get("deviceName") != arguments["device"]]
        self.save(arguments["target"], {**row, "disks": kept})
