"""The keys of encrypted disks, which an instance needs to start.

docs.cloud.google.com/compute/docs/disks/customer-supplied-encryption; the wordings are guesses.
"""

from __future__ import annotations

from tpuctl.emulator.compute.core.collection import Row
from tpuctl.emulator.compute.core.errors import bad_field
from tpuctl.emulator.compute.core.supported_fields import START_WITH_KEYS, check_supported
from tpuctl.emulator.compute.disks.encryption_keys import shown_key
from tpuctl.emulator.compute.disks.references import full_disk, place_of


def check_keys(instance: str, row: Row, body: Row) -> None:
    """Refuse to start an instance without the right key of each disk that has one."""
    check_supported(body, START_WITH_KEYS, place="resource")
    encrypted = {
        disk["source"]: disk["diskEncryptionKey"] for disk in row["disks"] if _has_own_key(disk)
    }
    for index, disk in enumerate(body.get("disks", ())):
        field, source = f"resource.disks[{index}]", disk.get("source", "")
        key = encrypted.pop(full_disk(place_of(instance), source), None)
        if key is None:
            reason = "It is not a disk of the instance with a customer-supplied encryption key."
            raise bad_field(f"{field}.source", source, reason)
        place = f"{field}.diskEncryptionKey"
        provided = shown_key(disk.get("diskEncryptionKey", {}), place)
        if provided.get("sha256") != key["sha256"]:
            reason = "The provided encryption key does not match that of the disk."
            raise bad_field(place, source, reason)
    for source in encrypted:
        raise bad_field("resource.disks", "", f"The key of the disk '{source}' must be provided.")


def _has_own_key(disk: Row) -> bool:
    return "sha256" in disk.get("diskEncryptionKey", {})
