"""What disks, snapshots and images are made from: one another, and Google's public images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tpuctl.emulator.compute.core.context import DISKS, IMAGES, SNAPSHOTS, ComputeContext, Row
from tpuctl.emulator.compute.core.errors import bad_field, not_found, unknown_reference
from tpuctl.emulator.compute.disks.public_images import (
    Image,
    image_row,
    is_public,
    public_image,
    public_images,
)
from tpuctl.emulator.compute.disks.references import full_disk, full_snapshot

# Of rows, but not of the resources: the public image that the content comes from, by full name.
BOOT_IMAGE = "bootImage"
_ADDED = ("guestOsFeatures", "licenseCodes", "licenses")
_INHERITED = ("architecture", BOOT_IMAGE, *_ADDED)
_UNUSABLE = ("DELETED", "OBSOLETE")
_DEPRECATED = ("DEPRECATED", *_UNUSABLE)
_IMAGE = re.compile(
    r"(?:projects/([^/]+)/)?(global/images/(?:family/)?|zones/[^/]+/imageFamilyViews/)([^/]+)$"
)


@dataclass(frozen=True)
class Content:
    """A disk, snapshot or image as the source of another."""

    name: str
    row: Row
    noun: str

    @property
    def size_gb(self) -> int:
        return int(self.row.get("sizeGb") or self.row["diskSizeGb"])

    def copied_to(self, row: Row) -> Row:
        """The row of what is made from it, with which source it is, and with what it keeps of that.

        Features and licenses of its own come on top.
        """
        inherited = {field: self.row[field] for field in _INHERITED if field in self.row}
        source = f"source{self.noun.capitalize()}"
        copy = {**inherited, **row, source: self.name, f"{source}Id": self.row["id"]}
        for field in _ADDED:
            values = inherited.get(field, [])
            added = [value for value in row.get(field, ()) if value not in values]
            if values or added:
                copy[field] = [*values, *added]
        return copy


def content_of_disk(context: ComputeContext, place: str, reference: str) -> Content | None:
    name = full_disk(place, reference)
    row = context.find(DISKS, name)
    if row is None:
        return None
    boot_image = row.get("sourceImage")  # of disks that earlier versions of tpuctl stored
    return Content(name, {BOOT_IMAGE: boot_image, **row} if boot_image else row, "disk")


def content_of_snapshot(context: ComputeContext, project: str, reference: str) -> Content:
    name = full_snapshot(project, reference)
    row = context.find(SNAPSHOTS, name)
    if row is None:
        raise not_found(name)
    return Content(name, row, "snapshot")


def content_of_image(
    context: ComputeContext, project: str, reference: str, field: str = ""
) -> Content:
    """The image that a full or partial link, the value of `field`, refers to.

    Forms: `https://…/projects/P/global/images/I`, `projects/P/global/images/family/F`, gcloud's
    `projects/P/zones/-/imageFamilyViews/F`, and those without a project, for images of one's own.
    """
    match = _IMAGE.search(reference)
    if match is None:
        raise bad_field(field, reference, "The URL is malformed.")
    record = context.registry.projects.find(match[1] or project)
    owner = str(record["id"]) if record else match[1] or project
    if match[2] != "global/images/":
        content = latest_image(context, owner, match[3])
    else:
        content = image_content(context, f"projects/{owner}/global/images/{match[3]}")
        if content is None and field:
            raise unknown_reference(field, reference, "image")
    if content is None:
        raise not_found(f"projects/{owner}/{match[2]}{match[3]}")
    state = _state_of(content.row)
    if state in _UNUSABLE:  # DeprecationStatus.state: rejected; the wording is a guess
        reason = f"The image is {state} and cannot be used."
        raise bad_field(field, reference, reason)
    return content


def image_content(context: ComputeContext, name: str) -> Content | None:
    """An image by its full name."""
    image = public_image(name)
    if image is not None:
        return _public_content(image)
    row = context.find(IMAGES, name)
    return None if row is None else Content(name, row, "image")


def latest_image(context: ComputeContext, project: str, family: str) -> Content | None:
    """The newest image of a family that is not deprecated."""
    if is_public(project):
        images = (image for image in public_images(project) if image.family == family)
        return next(map(_public_content, images), None)
    candidates = [
        Content(name, row, "image")
        for name, row in context.items(IMAGES, f"projects/{project}/")
        if row.get("family") == family and _state_of(row) not in _DEPRECATED
    ]
    return max(candidates, key=_age, default=None)


def _state_of(image: Row) -> str:
    return str(image.get("deprecated", {}).get("state", "ACTIVE"))


def _age(image: Content) -> tuple[datetime, str]:
    return datetime.fromisoformat(image.row["creationTimestamp"]), image.name


def _public_content(image: Image) -> Content:
    row = {**image_row(image), BOOT_IMAGE: image.full_name}
    return Content(image.full_name, row, "image")


def boot_image(disk: Mapping[str, str]) -> Image | None:
    """The public image that a disk's content comes from."""
    return public_image(disk.get(BOOT_IMAGE) or disk.get("sourceImage", ""))
