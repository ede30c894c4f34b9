"""One version of an object, as a row of the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class StoredObject:
    """One version of one object."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    file: str
    body: dict[str, Any]  # the rest of the resource; keys that start with _ are internal

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> StoredObject:
        bucket, name, generation, metageneration, size, file, body = row
        return cls(bucket, name, generation, metageneration, size, file, json.loads(body))

    def row(self) -> tuple[Any, ...]:
        return (
            self.bucket,
            self.name,
            self.generation,
            self.metageneration,
            self.size,
            self.file,
            json.dumps(self.body),
        )

    @property
    def state(self) -> tuple[int, int]:
        return self.generation, self.metageneration

    @property
    def path(self) -> str:
        return f"{self.bucket}/{self.name}"

    def with_body(self, body: dict[str, Any]) -> StoredObject:
        return replace(self, body=body)
