"""Ledgers: what a stack, or all of a project, have spent, in objects that machines update."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.stack.spending import VERSION, Ledger
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import BUDGET_LEDGER
from tpuctl.model.text.record_parsing import require_known_version


class LedgerObject:
    """Reads and writes a ledger. Nothing may be spent while it cannot be read."""

    def __init__(self, cloud: Cloud, bucket: str, name: str, *, is_of_stack: bool) -> None:
        self._cloud = cloud
        self._store = cloud.objects(bucket)
        self._name = name
        self.is_of_stack = is_of_stack

    @classmethod
    def of(cls, stack: Stack, cloud: Cloud) -> LedgerObject:
        """The ledger of a stack."""
        return cls(cloud, stack.bucket, stack.names.ledger, is_of_stack=True)

    @classmethod
    def of_budget(cls, stack: Stack, cloud: Cloud) -> LedgerObject:
        """The ledger of all stacks of the project that have a budget."""
        return cls(cloud, stack.names.budget_bucket, BUDGET_LEDGER, is_of_stack=False)

    @classmethod
    def all_of(cls, stack: Stack, cloud: Cloud) -> list[LedgerObject]:
        """The ledgers that the stack's limits count by."""
        ledgers = [cls.of(stack, cloud)] if stack.has_life_limits else []
        return ledgers if stack.budget is None else [*ledgers, cls.of_budget(stack, cloud)]

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
        require_known_version(ledger.version, VERSION, self.uri)
        return ledger
