"""The stack's bucket, with bundles, logs, records and the output of jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Self

from tpuctl.catalog import storage_price
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, Denied, Diagnostic, NotFound
from tpuctl.model.cost.cost import CostLine, storage_cost
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.stack.stack_rules import egress_note
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import BUNDLES, CACHE, STACK_LABEL
from tpuctl.polling import gather_all
from tpuctl.resources.base import IAM_PROPAGATION_SECONDS, Query, StackResource
from tpuctl.units import format_duration

KEEP_DAYS = 30  # bundles and caches, after their last upload
PARALLEL_DELETES = 16


class StorageBucket(StackResource):
    """A bucket of a project: with uniform access, never public."""

    number: int | None = None  # the project's number, once queried

    @property
    def after(self) -> frozenset[str]:
        key = self.stack.crypto_key
        return frozenset({"apis/needed"} | ({f"key/{key.id}"} if key is not None else set()))

    @property
    def new_labels(self) -> dict[str, str]:
        """The labels of a bucket that is created."""
        return self.stack.new_labels

    async def read_number(self) -> None:
        """Read the project's number, which proves ownership: bucket names are global, and anyone
        can set labels."""
        request = {"name": f"projects/{self.stack.project}"}
        project = await self.call("projects", "get_project", request)
        self.number = int(project.name.partition("/")[2])

    def is_in_project(self, observed: Any) -> bool:
        """Whether the bucket is the project's; assumed while the number was not read."""
        return self.number is None or bool(observed.project_number == self.number)

    async def create_bucket(self, *expiring_prefixes: str) -> None:
        bucket = self.cloud.client("storage").bucket(self.name)
        bucket.labels = self.new_labels
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.iam_configuration.public_access_prevention = "enforced"
        # Soft-deleted checkpoints would be charged.
        bucket.soft_delete_policy.retention_duration_seconds = 0
        if self.stack.crypto_key is not None:
            bucket.default_kms_key_name = self.stack.crypto_key.name
        if expiring_prefixes:
            bucket.add_lifecycle_delete_rule(age=KEEP_DAYS, matches_prefix=[*expiring_prefixes])
        await self.cloud.call(self.address, bucket.create, location=self.stack.bucket_location)


class Bucket(StorageBucket):
    """Uniform access, never public; `down` keeps it unless requested otherwise."""

    kind = "bucket"
    group = "bucket"
    label = "the bucket, and the bundles, logs and records in it"
    is_billable = True
    permissions = """
        read storage.admin storage.buckets.get storage.objects.get storage.objects.list
        create storage.admin storage.buckets.create storage.buckets.list
        create storage.admin storage.objects.create storage.objects.delete
        update:labels,key storage.admin storage.buckets.update
        delete storage.admin storage.buckets.delete
    """
    optional: ClassVar = {
        "update": "labeling a bucket again, or changing its key",
        "delete": "`down --delete-bucket`",
    }

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(replace(stack, bucket=item.name), cloud, delete=delete_bucket)

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        storage = query.cloud.client("storage")
        for bucket in storage.list_buckets(project=query.project, **query.options):
            if owner := bucket.labels.get(STACK_LABEL):
                where = str(bucket.location).lower()
                yield InventoryItem(
                    cls, bucket.name, owner, detail=where, created=bucket.time_created
                )

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine:
        """Only its rate: its contents are not queried."""
        rate = storage_price(item.detail)
        if rate is None:
            return storage_cost(item.detail)
        return CostLine(item.address, None, f"{rate} of stored data", rate.read)

    def __init__(
        self,
        *args: Any,
        delete: bool = False,
        awaits_key: Callable[[], bool] = lambda: False,
    ) -> None:
        """`awaits_key`: whether the use of the stack's key was granted just now."""
        super().__init__(*args)
        self._awaits_key = awaits_key
        self.deletes = delete or not self.stack.file.bucket.keep
        # As last observed:
        self.is_versioned = False
        self.soft_delete_seconds = 0
        self.has_other_key = False

    @property
    def name(self) -> str:
        return self.stack.bucket

    @property
    def is_user_named(self) -> bool:
        return self.stack.file.bucket.name != "auto"

    async def observe(self) -> Any | None:
        bucket = await self.find("storage", "get_bucket", self.name)
        if bucket is None:
            return None
        self.is_versioned = bool(bucket.versioning_enabled)
        self.soft_delete_seconds = bucket.soft_delete_policy.retention_duration_seconds or 0
        self.has_other_key = self._has_other_key(bucket)
        if not self.is_user_named:
            await self.read_number()
        return bucket

    def diff(self, observed: Any | None) -> Change:
        if observed is None:
            where = self.stack.bucket_location
            in_region = where == self.stack.region
            relation = "the TPU's region" if in_region else "outside the TPU's region"
            return self.create(f"in {where}, {relation}")
        self._check(observed)
        self._require_rewritable(observed)
        where = str(observed.location).lower()
        if where != self.stack.bucket_location and not self.stack.file.bucket.allow_egress:
            raise Conflict(
                "Bucket outside the TPU's region",
                f"gs://{self.name} is in {where}, the node will be in "
                f"{self.stack.region}{egress_note(where, self.stack.region)}",
                hint="Choose a zone in the bucket's region, or accept the traffic:\n"
                "    bucket: {allow_egress: true}",
            )
        fields = self._stale_fields(observed) if self.is_ours(observed) else ()
        if fields:
            return self.update(f"{' and '.join(fields)} changed in the stack file", fields)
        return self.nothing(f"gs://{self.name} exists")

    def _stale_fields(self, observed: Any) -> list[str]:
        fields = []
        if not self.stack.labels.items() <= observed.labels.items():
            fields.append("labels")
        if self._has_other_key(observed):  # of new objects: old ones keep theirs
            fields.append("key")
        return fields

    def _has_other_key(self, observed: Any) -> bool:
        """Whether new objects are not encrypted with the stack's key."""
        key = self.stack.crypto_key
        return key is not None and not key.is_of(observed.default_kms_key_name or "")

    def _require_rewritable(self, observed: Any) -> None:
        """Reject a bucket in which jobs cannot rewrite their records and logs while they run."""
        update = f"gcloud storage buckets update gs://{self.name}"
        another = "Or use another bucket:\n    bucket: {name: my-bucket}"
        period, is_locked = observed.retention_period, observed.retention_policy_locked
        if period:
            remove = f"Remove the policy:\n    {update} --clear-retention-period\n"
            raise Conflict(
                "Bucket has a retention policy",
                f"gs://{self.name} keeps each object unchanged for {format_duration(period)}; the "
                "stack's record, and the records and logs of its jobs, are rewritten while it runs"
                + (". The policy is locked, and cannot be removed" if is_locked else ""),
                hint=another.removeprefix("Or ").capitalize() if is_locked else remove + another,
            )
        if observed.default_event_based_hold:
            raise Conflict(
                "Bucket holds its objects",
                f"gs://{self.name} places an event-based hold on each new object, which then "
                "cannot be rewritten; records and logs of jobs are",
                hint=f"Turn that off:\n    {update} --no-default-event-based-hold\n{another}",
            )
        if observed.requester_pays:
            raise Conflict(
                "Bucket has requester pays",
                f"gs://{self.name} charges who reads it, and refuses the calls of tpuctl and of "
                "the machines, which name no project to bill",
                hint=f"Turn that off:\n    {update} --no-requester-pays\n{another}",
            )

    @property
    def warnings(self) -> list[Diagnostic]:
        """What to know about the bucket as last observed."""
        warnings = []
        if self.has_other_key and self.is_user_named and self.stack.crypto_key is not None:
            warnings.append(
                Diagnostic(
                    "Bucket has another key",
                    f"gs://{self.name} does not encrypt new objects with encryption.kms_key, and "
                    "is not the stack's to change",
                    "To let it, have its owner run\n"
                    f"    gcloud storage buckets update gs://{self.name} "
                    f"--default-encryption-key={self.stack.crypto_key.name}",
                )
            )
        if self.is_versioned:
            feature, option = "object versioning", "--no-versioning"
            warnings.append(self._kept_warning(feature, "stays", option))
        if self.soft_delete_seconds:
            feature, option = "soft delete", "--clear-soft-delete"
            time = f"stays for {format_duration(self.soft_delete_seconds)}"
            warnings.append(self._kept_warning(feature, time, option))
        return warnings

    def _kept_warning(self, feature: str, effect: str, option: str) -> Diagnostic:
        return Diagnostic(
            "Bucket keeps old versions",
            f"gs://{self.name} has {feature}: each time a record or log is rewritten, "
            f"the former version {effect}, and is charged",
            f"Turn that off, unless you need it:\n"
            f"    gcloud storage buckets update gs://{self.name} {option}",
        )

    def is_ours(self, observed: Any) -> bool:
        is_labeled = observed.labels.get(STACK_LABEL) == self.stack.name
        return is_labeled and self.is_in_project(observed)

    def removal(self, observed: Any | None) -> Change:
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        if not self.deletes:
            return self.leave("kept on request; delete it with `down --delete-bucket`")
        return self.delete("created for this stack, with all its contents")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete(report)
            return
        if change.action is Action.UPDATE:
            await self._update(change.fields)
            return
        await self.create_or_adopt(self._create, self.observe, report, check=self._check)

    async def _create(self) -> None:
        async def probe() -> bool | None:
            try:
                await self.create_bucket(f"{BUNDLES}/", f"{CACHE}/")
            except Denied as error:
                if "Cloud KMS key" not in str(error) or not self._awaits_key():
                    raise
                return None
            return True

        await self.poll(probe, "the key becoming usable", IAM_PROPAGATION_SECONDS)

    async def _update(self, fields: Collection[str]) -> None:
        """Add the stack file's labels to the existing ones, and set its key."""
        observed = await self.observe()
        if observed is None:
            raise NotFound(
                "Bucket not found",
                f"gs://{self.name} was deleted in the meantime",
                hint="Recreate what is missing:\n    tpuctl up",
            )
        observed.labels = {**observed.labels, **self.stack.labels}
        if "key" in fields and self.stack.crypto_key is not None:
            observed.default_kms_key_name = self.stack.crypto_key.name
        await self.cloud.call(self.address, observed.patch)

    async def _delete(self, report: Report) -> None:
        """Empty and delete the bucket, with noncurrent versions of its objects; again if someone
        writes to it meanwhile."""
        storage = self.cloud.client("storage")
        bucket = storage.bucket(self.name)

        def versions(**options: Any) -> list[Any]:
            return list(storage.list_blobs(self.name, versions=True, **options))

        for _ in range(5):
            try:
                objects = await self.cloud.call(self.address, versions)
                for done in range(0, len(objects), PARALLEL_DELETES):
                    report(f"deleting {len(objects)} objects", done / len(objects))
                    await gather_all(
                        self._delete_object(bucket, blob)
                        for blob in objects[done:][:PARALLEL_DELETES]
                    )
                await self.cloud.call(self.address, bucket.delete)
            except NotFound:
                return
            except Conflict:
                continue
            return
        raise Conflict(
            "Bucket not empty",
            f"gs://{self.name} is being written to",
            hint="Stop what writes to it, then retry:\n"
            "    tpuctl stop\n"
            "    tpuctl down --delete-bucket",
        )

    async def _delete_object(self, bucket: Any, blob: Any) -> None:
        version = bucket.blob(blob.name, generation=blob.generation)
        with contextlib.suppress(NotFound):
            await self.cloud.call(f"gs://{self.name}/{blob.name}", version.delete)

    def _check(self, observed: Any) -> None:
        if self.is_user_named or self.is_ours(observed):
            return
        raise Conflict(
            "Name taken",
            f"gs://{self.name} exists and is not part of stack {self.stack.name}",
            hint="Bucket names are global. Choose another name:\n    bucket: {name: my-bucket}",
        )
