"""Images: Google's public ones, and custom ones of disks, snapshots and other images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpuctl.emulator.compute.core.collection import Items, LabeledCollection, Row, idempotent
from tpuctl.emulator.compute.core.context import IMAGES, INSTANCES
from tpuctl.emulator.compute.core.errors import bad_field, in_use, not_found, unknown_reference
from tpuctl.emulator.compute.core.messages import LINK, as_row, message_of
from tpuctl.emulator.compute.core.supported_fields import IMAGE
from tpuctl.emulator.compute.disks.content import (
    BOOT_IMAGE,
    Content,
    content_of_disk,
    content_of_image,
    content_of_snapshot,
    image_content,
    latest_image,
)
from tpuctl.emulator.compute.disks.encryption_keys import shown_key
from tpuctl.emulator.compute.disks.public_images import is_public, public_images
from tpuctl.emulator.compute.disks.references import full_disk
from tpuctl.emulator.state.errors import ApiError, invalid, unsupported_field
from tpuctl.emulator.state.locations import region_of_name
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.wire.registry import Caller

_SOURCES = ("sourceDisk", "sourceImage", "sourceSnapshot")
_STOPPED = ("TERMINATED", "STOPPED", "SUSPENDED")
# "Only the following fields can be modified", says the method's description.
_PATCHED = ("deprecated", "description", "family")
_MULTI_REGIONS = {"asia": "asia", "europe": "eu"}  # all others are stored in the US


class Images(LabeledCollection):
    """Images of a project. Those of Google's public projects are computed and cannot be changed."""

    kind, message, plural, field = IMAGES, "Image", "images", "image"
    links = _SOURCES
    supported, labels_field = IMAGE, "global_set_labels_request_resource"
    internal = (BOOT_IMAGE,)

    def verbs(self) -> dict[str, Effect]:
        return {**super().verbs(), "deprecate": Effect(self._finish_deprecate)}

    # Lookup.

    def collection_name(self, request: Any) -> str:
        """Anyone may read the public projects; others must exist."""
        if is_public(request.project):
            return f"projects/{request.project}/global/images"
        return super().collection_name(request)

    def find(self, name: str) -> Row | None:
        content = image_content(self.context, name)
        return None if content is None else content.row

    def names(self, prefix: str) -> Sequence[str]:
        return [name for name, _ in self.items(prefix)]

    def items(self, prefix: str) -> Items:
        project = prefix.split("/")[1]
        if not is_public(project):
            return super().items(prefix)
        names = [image.full_name for image in public_images(project)]
        return [(name, self.require(name)) for name in names]

    def show(self, name: str, row: Row) -> Row:
        resource = super().show(name, row)
        if replacement := row.get("deprecated", {}).get("replacement"):
            resource["deprecated"] = {**row["deprecated"], "replacement": LINK + replacement}
        return resource

    async def get_from_family(self, request: Any, caller: Caller) -> Any:
        base = self.collection_name(request)
        content = latest_image(self.context, base.split("/")[1], request.family)
        if content is None:
            raise not_found(f"{base}/family/{request.family}")
        return message_of("Image", self.show(content.name, content.row))

    # Changes.

    def target_of(self, request: Any) -> str:
        """Refuses changes of Google's projects, where callers have no permissions."""
        if is_public(request.project):
            raise _forbidden(f"projects/{request.project}")
        return super().target_of(request)

    async def insert(self, request: Any, caller: Caller) -> Any:
        if not request.force_create and request.image_resource.source_disk:
            self._check_unused(request)
        return await super().insert(request, caller)

    def _check_unused(self, request: Any) -> None:
        """A disk of a running instance is only copied by force (images.insert, forceCreate)."""
        if is_public(request.project):
            return
        project = self.collection_name(request).partition("/global/")[0]
        disk = full_disk(project, request.image_resource.source_disk)
        for service in self.context.registry.machine_services():
            for user in service.users_of_disks(project.split("/")[1]).get(disk, ()):
                instance = self.context.find(INSTANCES, user)
                if instance is None or instance["status"] not in _STOPPED:
                    raise in_use("disk", disk, user)

    def complete(self, name: str, row: Row) -> Row:
        if row.get("rawDisk"):
            raise unsupported_field("resource.rawDisk")
        if len([field for field in _SOURCES if row.get(field)]) != 1:
            # ansible-collections/google.cloud#378
            text = "Must specify exactly one source for an image."
            raise invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")
        content = self._content(name, row)
        size = int(row.get("diskSizeGb", 0))
        if 0 < size < content.size_gb:  # a guess
            reason = f"It cannot be smaller than the {content.noun} size ({content.size_gb} GB)"
            raise bad_field("resource.diskSizeGb", str(size), reason)
        complete = {
            "architecture": "X86_64",
            **content.copied_to(row),
            "sourceType": "RAW",
            "status": "READY",
            "diskSizeGb": str(size or content.size_gb),
            "archiveSizeBytes": "0",
            "enableConfidentialCompute": False,
            "storageLocations": row.get("storageLocations") or [_nearest(content)],
        }
        if "imageEncryptionKey" in row:
            key = shown_key(row["imageEncryptionKey"], "resource.imageEncryptionKey")
            complete["imageEncryptionKey"] = key
        return complete

    def _content(self, name: str, row: Row) -> Content:
        project = name.split("/")[1]
        if row.get("sourceImage"):
            return content_of_image(
                self.context, project, row["sourceImage"], "resource.sourceImage"
            )
        if row.get("sourceSnapshot"):
            return content_of_snapshot(self.context, project, row["sourceSnapshot"])
        disk = content_of_disk(self.context, f"projects/{project}", row["sourceDisk"])
        if disk is None:
            raise unknown_reference("resource.sourceDisk", row["sourceDisk"], "disk")
        return disk

    @idempotent
    async def patch(self, name: str, request: Any, caller: Caller) -> Any:
        before = as_row(message_of("Image", self.show(name, self.require(name))))
        body = as_row(request.image_resource)
        changes = {field: body[field] for field in body if body[field] != before.get(field)}
        for field in changes:
            if field not in _PATCHED:
                raise unsupported_field(f"resource.{field}")
        if "deprecated" in changes:
            changes["deprecated"] = self._deprecation(name, changes["deprecated"])
        return self.begin("patch", name, caller, {"row": changes}, request.request_id)

    @idempotent
    async def deprecate(self, name: str, request: Any, caller: Caller) -> Any:
        """Without a state, the status is cleared."""
        self.require(name)
        status = self._deprecation(name, as_row(request.deprecation_status_resource))
        return self.begin("deprecate", name, caller, {"status": status}, request.request_id)

    def _deprecation(self, name: str, status: Row) -> Row:
        if not status.get("replacement"):
            return status
        project = name.split("/")[1]
        replacement = content_of_image(self.context, project, status["replacement"], "replacement")
        return {**status, "replacement": replacement.name}

    def _finish_deprecate(self, arguments: Arguments) -> None:
        name, status = arguments["target"], arguments["status"]
        row = self.require(name)
        row.pop("deprecated", None)
        self.store.put_json(self.kind, name, {**row, "deprecated": status} if status else row)


class ImageFamilyViews:
    """An image family as seen from a zone: the same in every zone."""

    def __init__(self, images: Images) -> None:
        self._images = images

    async def get(self, request: Any, caller: Caller) -> Any:
        image = await self._images.get_from_family(request, caller)
        view = message_of("ImageFamilyView", {})
        view.image.CopyFrom(image)
        return view


def _forbidden(project: str) -> ApiError:
    """As of other projects without permissions; which permission, the local cloud does not say."""
    text = f"Required permission to change images of '{project}'"
    return ApiError("PERMISSION_DENIED", text, reason="forbidden")


def _nearest(content: Content) -> str:
    """The multi-region nearest to the source, where Google stores an image by default."""
    if content.noun != "disk":
        return str(content.row["storageLocations"][0])
    region = region_of_name(content.name)
    return _MULTI_REGIONS.get(region.partition("-")[0], "us")
