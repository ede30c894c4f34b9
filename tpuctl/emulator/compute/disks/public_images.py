"""Google's public images, and the versions of Python and TensorFlow that each contains."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.compute.core.messages import LINK

_BUILD_DATE = date(2026, 9, 15)  # an example only
# Other public projects that `gcloud compute images list` queries (SDK 528,
# api_lib/compute/constants.py): readable by anyone, without images here.
_WITHOUT_IMAGES = frozenset(
    (
        *("centos-cloud", "cos-cloud", "fedora-coreos-cloud", "opensuse-cloud"),
        *("oracle-linux-cloud", "rhel-cloud", "rhel-sap-cloud", "rocky-linux-accelerator-cloud"),
        *("rocky-linux-cloud", "suse-cloud", "suse-sap-cloud", "ubuntu-os-pro-cloud"),
        *("windows-cloud", "windows-sql-cloud"),
    )
)
_DEBIAN_FEATURES = ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", "GVNIC", "SEV_CAPABLE")
_UBUNTU_FEATURES = (
    *("VIRTIO_SCSI_MULTIQUEUE", "SEV_CAPABLE", "SEV_SNP_CAPABLE", "SEV_LIVE_MIGRATABLE"),
    *("SEV_LIVE_MIGRATABLE_V2", "IDPF", "TDX_CAPABLE", "UEFI_COMPATIBLE", "GVNIC"),
)


@dataclass(frozen=True)
class Image:
    """An image of a public project. `tensorflow` is its version, None for plain OS images;
    `python` is None if it is unknown."""

    project: str
    family: str
    name: str
    description: str
    license: str
    license_code: str
    guest_features: tuple[str, ...] = _DEBIAN_FEATURES
    size_gb: int = 10
    tensorflow: str | None = None
    python: str | None = None

    @property
    def full_name(self) -> str:
        return f"projects/{self.project}/global/images/{self.name}"


def tensorflow_family(version: str) -> str:
    """The ml-images family of a TPU node version, as gcloud's execution-groups names it: before
    2.4 the patch is omitted if it is 0."""
    major, minor, patch = (int(part) for part in (*version.split("."), "0")[:3])
    short = f"tf-{major}-{minor}"
    return f"{short}-{patch}" if patch or (major >= 2 and minor >= 4) else short


# Debian 11 as recorded by GoogleCloudPlatform/k8s-config-connector (the cassette of
# osconfigguestpolicy); the others as public inventories of 2025 and 2026 list them. Their Pythons
# are the releases' `python3` (packages.ubuntu.com, packages.debian.org).
_OS_IMAGES = (
    Image(
        "ubuntu-os-cloud",
        "ubuntu-2204-lts",
        f"ubuntu-2204-jammy-v{_BUILD_DATE:%Y%m%d}",
        f"Canonical, Ubuntu, 22.04 LTS, amd64 jammy image built on {_BUILD_DATE}",
        "ubuntu-2204-lts",
        "5511465778777431107",
        _UBUNTU_FEATURES,
        python="3.10",
    ),
    Image(
        "ubuntu-os-cloud",
        "ubuntu-2404-lts-amd64",
        f"ubuntu-2404-noble-amd64-v{_BUILD_DATE:%Y%m%d}",
        f"Canonical, Ubuntu, 24.04 LTS, amd64 noble image built on {_BUILD_DATE}",
        "ubuntu-2404-lts",
        "3242930272766215801",
        (*_UBUNTU_FEATURES, "SNP_SVSM_CAPABLE"),
        python="3.12",
    ),
    Image(
        "debian-cloud",
        "debian-12",
        f"debian-12-bookworm-v{_BUILD_DATE:%Y%m%d}",
        f"Debian, Debian GNU/Linux, 12 (bookworm), amd64 built on {_BUILD_DATE:%Y%m%d}",
        "debian-12-bookworm",
        "2147286739765738111",
        (*_DEBIAN_FEATURES, "SEV_LIVE_MIGRATABLE_V2"),
        python="3.11",
    ),
    Image(
        "debian-cloud",
        "debian-11",
        f"debian-11-bullseye-v{_BUILD_DATE:%Y%m%d}",
        f"Debian, Debian GNU/Linux, 11 (bullseye), amd64 built on {_BUILD_DATE:%Y%m%d}",
        "debian-11-bullseye",
        "3853522013536123851",
        python="3.9",
    ),
)


# For machines with TPUs: docs.cloud.google.com/tpu/docs/tpu-os-images. They have neither Docker nor
# a framework; licenses and features are those of Ubuntu's plain images: a guess.
_TPU_IMAGES = tuple(
    Image(
        "ubuntu-os-accelerator-images",
        family,
        f"{family}-v{_BUILD_DATE:%Y%m%d}",
        f"Canonical, Ubuntu, {release} LTS, amd64 TPU image built on {_BUILD_DATE}",
        *(license_name, license_code),
        _UBUNTU_FEATURES,
        python=python,
    )
    for family, release, python, license_name, license_code in (
        (
            *("ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "22.04", "3.10"),
            *("ubuntu-2204-lts", "5511465778777431107"),
        ),
        (
            *("ubuntu-accel-2404-amd64-tpu-tpu7x", "24.04", "3.12"),
            *("ubuntu-2404-lts", "3242930272766215801"),
        ),
    )
)


@cache
def _images() -> tuple[Image, ...]:
    versions = {version.tensorflow for version in catalog.node_versions() if version.tensorflow}
    return (*_OS_IMAGES, *_TPU_IMAGES, *map(_tensorflow_image, sorted(versions)))


def _tensorflow_image(version: str) -> Image:
    """The license is a guess: no description of such an image is public."""
    family = tensorflow_family(version)
    return Image(
        "ml-images",
        family,
        f"{family}-v{_BUILD_DATE:%Y%m%d}",
        f"TensorFlow {version}",
        family,
        _number(family),
        size_gb=50,
        tensorflow=version,
    )


def public_image(full_name: str) -> Image | None:
    """The image of this full name, `projects/P/global/images/I`."""
    return next((image for image in _images() if image.full_name == full_name), None)


def public_images(project: str) -> Sequence[Image]:
    """The images of a project of Google's."""
    return [image for image in _images() if image.project == project]


@cache
def is_public(project: str) -> bool:
    """Whether anyone may read the images of the project."""
    return project in _WITHOUT_IMAGES or bool(public_images(project))


def _number(text: str) -> str:
    return str(int(hashlib.sha256(text.encode()).hexdigest()[:15], 16))


def image_row(image: Image) -> dict[str, Any]:
    return {
        "kind": "compute#image",
        "id": _number(image.full_name),
        "creationTimestamp": f"{_BUILD_DATE}T00:00:00.000-07:00",
        "name": image.name,
        "family": image.family,
        "status": "READY",
        "sourceType": "RAW",
        "rawDisk": {"containerType": "TAR", "source": ""},
        "description": image.description,
        "diskSizeGb": str(image.size_gb),
        "archiveSizeBytes": str(image.size_gb * 10**8),
        "storageLocations": ["us", "eu", "asia"],
        "licenses": [f"{LINK}projects/{image.project}/global/licenses/{image.license}"],
        "licenseCodes": [image.license_code],
        "guestOsFeatures": [{"type": feature} for feature in image.guest_features],
        "architecture": "X86_64",
    }
