"""Boot images, and the TensorFlow version each contains."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.compute.context import ComputeContext
from tpuctl.emulator.compute.errors import bad_field, not_found
from tpuctl.emulator.compute.lists import listed
from tpuctl.emulator.compute.messages import LINK, message_of
from tpuctl.emulator.wire.registry import Caller

__all__ = [
    "Image",
    "ImageFamilyViews",
    "Images",
    "boot_fields",
    "find_image",
    "image_id",
    "tensorflow_family",
]

_BUILD_DATE = "20260915"  # suffix of image names; an example only
_OS_IMAGES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "ubuntu-os-cloud": (
        ("ubuntu-2204-lts", f"ubuntu-2204-jammy-v{_BUILD_DATE}"),
        ("ubuntu-2404-lts-amd64", f"ubuntu-2404-noble-amd64-v{_BUILD_DATE}"),
    ),
    "debian-cloud": (
        ("debian-12", f"debian-12-bookworm-v{_BUILD_DATE}"),
        ("debian-11", f"debian-11-bullseye-v{_BUILD_DATE}"),
    ),
}
# Other public projects that `gcloud compute images list` queries (SDK 528,
# api_lib/compute/constants.py): readable by anyone, without images here.
_WITHOUT_IMAGES = frozenset(
    (
        *("centos-cloud", "cos-cloud", "fedora-coreos-cloud", "opensuse-cloud"),
        *("oracle-linux-cloud", "rhel-cloud", "rhel-sap-cloud", "rocky-linux-accelerator-cloud"),
        *("rocky-linux-cloud", "suse-cloud", "suse-sap-cloud", "ubuntu-os-accelerator-images"),
        *("ubuntu-os-pro-cloud", "windows-cloud", "windows-sql-cloud"),
    )
)
# Of Debian 11 and 12: GoogleCloudPlatform/k8s-config-connector, osconfigguestpolicy's cassettes.
_GUEST_FEATURES = ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", "GVNIC", "SEV_CAPABLE")
_REFERENCE = re.compile(
    r"(?:projects/([^/]+)/)?(global/images/(?:family/)?|zones/[^/]+/imageFamilyViews/)([^/]+)$"
)


@dataclass(frozen=True)
class Image:
    """An image of a public project. `tensorflow` is its version, None for plain OS images."""

    project: str
    family: str
    name: str
    size_gb: int
    tensorflow: str | None = None

    @property
    def full_name(self) -> str:
        return f"projects/{self.project}/global/images/{self.name}"


def tensorflow_family(version: str) -> str:
    """The ml-images family of a TPU node version, as gcloud's execution-groups names it: before
    2.4 the patch is omitted if it is 0."""
    major, minor, patch = (int(part) for part in (*version.split("."), "0")[:3])
    short = f"tf-{major}-{minor}"
    return f"{short}-{patch}" if patch or (major >= 2 and minor >= 4) else short


@cache
def _images() -> tuple[Image, ...]:
    images = [
        Image(project, family, name, 10)
        for project, rows in _OS_IMAGES.items()
        for family, name in rows
    ]
    for version in sorted(
        {
            node_version.tensorflow
            for node_version in catalog.node_versions()
            if node_version.tensorflow
        }
    ):
        family = tensorflow_family(version)
        images.append(Image("ml-images", family, f"{family}-v{_BUILD_DATE}", 50, version))
    return tuple(images)


def find_image(text: str) -> Image:
    """The image that a full or partial link refers to; an unknown one is an error.

    Forms: `https://…/projects/P/global/images/I`, `projects/P/global/images/family/F`, and
    gcloud's `projects/P/zones/-/imageFamilyViews/F`.
    """
    match = _REFERENCE.search(text)
    if match is None:
        reason = "The URL is malformed."
        raise bad_field("resource.disks[0].initializeParams.sourceImage", text, reason)
    project, folder, name = match[1] or "", match[2], match[3]
    is_family = folder != "global/images/"
    for image in _images():
        if image.project == project and name == (image.family if is_family else image.name):
            return image
    raise not_found(f"projects/{project}/{folder}{name}")


class Images:
    """Images of Google's public projects. Custom images are not emulated."""

    def __init__(self, context: ComputeContext) -> None:
        self._context = context

    async def get(self, request: Any, caller: Caller) -> Any:
        self._check_readable(request.project)
        return show(find_image(f"projects/{request.project}/global/images/{request.image}"))

    async def get_from_family(self, request: Any, caller: Caller) -> Any:
        self._check_readable(request.project)
        name = f"projects/{request.project}/global/images/family/{request.family}"
        return show(find_image(name))

    async def list(self, request: Any, caller: Caller) -> Any:
        self._check_readable(request.project)
        rows = [_row(image) for image in _images() if image.project == request.project]
        base = f"projects/{request.project}/global/images"
        return listed(request, "ImageList", "compute#imageList", rows, base)

    def _check_readable(self, project: str) -> None:
        """Anyone may read the public projects; others must exist."""
        is_public = project in _WITHOUT_IMAGES
        if not is_public and all(image.project != project for image in _images()):
            self._context.project(project)


class ImageFamilyViews:
    """An image family as seen from a zone: the same in every zone."""

    def __init__(self, images: Images) -> None:
        self._images = images

    async def get(self, request: Any, caller: Caller) -> Any:
        image = await self._images.get_from_family(request, caller)
        view = message_of("ImageFamilyView", {})
        view.image.CopyFrom(image)
        return view


def show(image: Image) -> Any:
    return message_of("Image", _row(image))


def image_id(image: Image) -> str:
    return str(int(hashlib.sha256(image.full_name.encode()).hexdigest()[:15], 16))


def _row(image: Image) -> dict[str, Any]:
    return {
        "kind": "compute#image",
        "id": image_id(image),
        "creationTimestamp": "2026-09-15T00:00:00.000-07:00",
        "name": image.name,
        "family": image.family,
        "status": "READY",
        "sourceType": "RAW",
        "rawDisk": {"containerType": "TAR", "source": ""},
        "description": f"{image.family}, built on {_BUILD_DATE}",
        "labelFingerprint": "42WmSpB8rSM=",
        "diskSizeGb": str(image.size_gb),
        "archiveSizeBytes": str(image.size_gb * 10**8),
        "storageLocations": ["us", "eu", "asia"],
        **boot_fields(image),
        "selfLink": LINK + image.full_name,
    }


def boot_fields(image: Image) -> dict[str, Any]:
    """What an image gives to the disks made from it."""
    license_name = (
        f"{image.family}-{image.name.split('-')[2]}" if image.tensorflow is None else image.family
    )
    license_code = int(hashlib.sha256(license_name.encode()).hexdigest()[:15], 16)
    return {
        "licenses": [f"{LINK}projects/{image.project}/global/licenses/{license_name}"],
        "licenseCodes": [str(license_code)],
        "guestOsFeatures": [{"type": feature} for feature in _GUEST_FEATURES],
        "architecture": "X86_64",
    }
