"""The ledger of a stack: what it has spent, in an object of its bucket that its machines update."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.stack.spending import VERSION, Ledger
from tpuctl.model.stack.stack import Stack


class LedgerObject:
    """Reads and writes a ledger. Nothing may be spent while it cannot be read."""

    def __init__(self, cloud: Cloud, bucket: str, name: str) -> None:
        self._cloud = cloud
        self._store = cloud.objects(bucket)
        self._name = name

    @classmethod
    def of(cls, stack: Stack, cloud: Cloud) -> LedgerObject:
        """The ledger of a stack."""
        return cls(cloud, stack.bucket, stack.names.ledger)

    @property
    def uri(self) -> str:
        return self._store.uri(self._name)

    async def read(self) -> Ledger:
        """The ledger; empty without an object or bucket. Raises Conflict if it is damaged."""
        try:
            return self._parsed(await self._store.get_bytes(self._name))
        except NotFound:
            return Ledger()

    async def update(self, change: Callable[[Ledger], Ledger]) -> None:
        """Apply `change`, again after a concurrent write. Raises NotFound without a bucket."""

        def changed(text: bytes | None) -> bytes | None:
            before = Ledger() if text is None else self._parsed(text)
            after = change(before)
            if text is not None and after == before:
                return None
            return after.model_dump_json(indent=2).encode()

        await self._store.update(self._name, changed, self._cloud.clock)

    def _parsed(self, text: bytes) -> Ledger:
        try:
            ledger = Ledger.model_validate_json(text)
        except ValidationError as error:
            raise Conflict(
                "Cannot read what was spent",
                f"{self.uri}: {error.errors()[0]['msg']}",
                hint="It is damaged. To count from zero again, delete it:\n"
                f"    gcloud storage rm {self.uri}",
            ) from None
        if ledger.version > VERSION:
            raise Conflict(
                "Record of a newer tpuctl version",
                f"{self.uri} has version {ledger.version}",
                hint="Upgrade tpuctl to the version that wrote it, or newer.",
            )
        return ledger
