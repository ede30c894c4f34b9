"""The Cloud KMS key that encrypts what a stack creates, and where it can."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tpuctl.catalog import region_of
from tpuctl.errors import Diagnostic
from tpuctl.model.stack.schema import StackFile

__all__ = ["CryptoKey", "crypto_key_of", "encryption_problems"]

# Where Cloud KMS has another name than Cloud Storage: cloud.google.com/kms/docs/locations.
_MULTI_REGIONS = {"eu": "europe"}


@dataclass(frozen=True)
class CryptoKey:
    """A key by its full name."""

    name: str

    def _part(self, index: int) -> str:
        return self.name.split("/")[index]

    @property
    def project(self) -> str:
        return self._part(1)

    @property
    def location(self) -> str:
        return self._part(3)

    @property
    def ring(self) -> str:
        return self._part(5)

    @property
    def id(self) -> str:
        return self._part(7)

    @property
    def options(self) -> str:
        """Where `gcloud kms keys` finds it."""
        return f"--keyring={self.ring} --location={self.location} --project={self.project}"

    def is_of(self, version: str) -> bool:
        """Whether a key's or version's name, as services return it, is this key's."""
        return re.sub(r"/cryptoKeyVersions/[^/]+$", "", version) == self.name


def crypto_key_of(file: StackFile) -> CryptoKey | None:
    name = file.encryption.kms_key
    return None if name is None else CryptoKey(name)


def encryption_problems(
    file: StackFile, zones: Iterable[str], bucket_location: str, where: Callable[[str], str]
) -> Iterator[Diagnostic]:
    """A key encrypts only what is in its location: the bucket, and disks of the zones."""
    key = crypto_key_of(file)
    if key is None:
        return
    regions = [region for zone in zones if (region := region_of(zone)) != key.location]
    places = [f"the TPU's region {region}" for region in dict.fromkeys(regions)]
    if bucket_location and _MULTI_REGIONS.get(bucket_location, bucket_location) != key.location:
        places.append(f"the bucket's location {bucket_location}")
    if places:
        yield Diagnostic(
            "Key in another location",
            f"encryption.kms_key: {key.id} is in {key.location}, and cannot encrypt what is in "
            + " or ".join(places),
            f"Use a key of that location, or only zones and a bucket in {key.location}. To create "
            "a key:\n"
            f"    gcloud kms keyrings create {key.ring} --location=LOCATION "
            f"--project={key.project}\n"
            f"    gcloud kms keys create {key.id} --purpose=encryption --keyring={key.ring} "
            f"--location=LOCATION --project={key.project}",
            where("encryption.kms_key"),
        )
