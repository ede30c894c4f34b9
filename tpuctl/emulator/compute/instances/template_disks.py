"""The disks of a template that is made from an instance (SourceInstanceParams.diskConfigs)."""

from __future__ import annotations

from tpuctl.emulator.compute.core.collection import Row, Rows
from tpuctl.emulator.compute.core.context import DISKS, ComputeContext
from tpuctl.emulator.compute.core.errors import bad_field
from tpuctl.emulator.compute.disks.content import image_content

_FIELDS = ("autoDelete", "boot", "deviceName", "diskSizeGb", "interface", "mode", "type")
_WITH_IMAGE = ("CUSTOM_IMAGE", "SOURCE_IMAGE", "SOURCE_IMAGE_FAMILY")
_PLACE = "resource.sourceInstanceParams.diskConfigs[{}]"


def template_disks(context: ComputeContext, instance: Row, configs: Rows) -> Rows:
    """By default the boot disk is made of the same image again, and others are new ones of the same
    size. Raises the errors of wrong configurations, whose wordings are guesses."""
    by_device: dict[str, tuple[int, Row]] = {}
    devices = [disk.get("deviceName") for disk in instance["disks"]]
    for index, config in enumerate(configs):
        device = config.get("deviceName", "")
        if device not in devices or device in by_device:
            reason = "It must be the name of one disk of the source instance."
            raise bad_field(f"{_PLACE.format(index)}.deviceName", device, reason)
        by_device[device] = (index, config)
    disks = (
        _disk(context, disk, *by_device.get(disk.get("deviceName", ""), (0, {})))
        for disk in instance["disks"]
    )
    return [disk for disk in disks if disk is not None]


def _disk(context: ComputeContext, disk: Row, index: int, config: Row) -> Row | None:
    attachment = {field: disk[field] for field in _FIELDS if field in disk}
    if "autoDelete" in config:
        attachment["autoDelete"] = config["autoDelete"]
    source = context.find(DISKS, disk["source"]) if "source" in disk else None
    choice, place = config.get("instantiateFrom", "DEFAULT"), _PLACE.format(index)
    _check(disk, config, choice, place)
    if choice == "DO_NOT_INCLUDE":
        return None
    if choice == "ATTACH_READ_ONLY":
        return {**attachment, "source": disk["source"], "mode": "READ_ONLY"}
    if source is None:
        return attachment
    params = {"diskSizeGb": source["sizeGb"], "diskType": source["type"].rpartition("/")[2]}
    image = _image(context, disk, source, config, choice)
    if choice in _WITH_IMAGE and not image:
        reason = "The disk was not made of an image."
        raise bad_field(f"{place}.instantiateFrom", choice, reason)
    return {**attachment, "initializeParams": params | ({"sourceImage": image} if image else {})}


def _check(disk: Row, config: Row, choice: str, place: str) -> None:
    if bool(config.get("customImage")) != (choice == "CUSTOM_IMAGE"):
        reason = "It is needed for CUSTOM_IMAGE, and for nothing else."
        raise bad_field(f"{place}.customImage", config.get("customImage", ""), reason)
    if choice in ("ATTACH_READ_ONLY", "BLANK", "DO_NOT_INCLUDE") and disk["boot"]:
        reason = "The boot disk needs an image."
        raise bad_field(f"{place}.instantiateFrom", choice, reason)
    if choice == "ATTACH_READ_ONLY" and disk.get("mode") != "READ_ONLY":
        reason = "Only disks that are attached read-only can be attached again."
        raise bad_field(f"{place}.instantiateFrom", choice, reason)


def _image(context: ComputeContext, disk: Row, source: Row, config: Row, choice: str) -> str:
    """The image that the disk is made of; "" for a blank one."""
    if choice == "CUSTOM_IMAGE":
        return str(config["customImage"])
    name = str(source.get("sourceImage", ""))
    if choice == "SOURCE_IMAGE" or (choice == "DEFAULT" and disk["boot"]):
        return name
    if choice == "SOURCE_IMAGE_FAMILY" and name:
        image = image_content(context, name)
        family = image.row.get("family") if image is not None else None
        return f"{name.rpartition('/')[0]}/family/{family}" if family else ""
    return ""
