"""What each command's `data` is in the envelope of `--json`.

A model is both what is printed and the source of the published schema. Keys keep their names and
meanings; new keys may be added, so programs must ignore unknown ones. Money is in US dollars,
timestamps are in ISO 8601, and null means unknown or not applicable.

Import this module only to print JSON: pydantic takes a while to load.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from tpuctl.view.columns import Number

T = TypeVar("T")


def _finite(value: Any) -> Any:
    """NaN and infinities as strings, as JSON has no such numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def rounded(digits: int) -> AfterValidator:
    return AfterValidator(lambda number: round(number, digits))


Measurement = Annotated[
    int | float | str, BeforeValidator(_finite), WithJsonSchema({"type": ["number", "string"]})
]
Dollars = Annotated[Number, rounded(4)]
SmallDollars = Annotated[Number, rounded(6)]  # disks cost fractions of a cent per hour
Hours = Annotated[float, rounded(4)]
Timestamp = Annotated[datetime, PlainSerializer(datetime.isoformat, return_type=str)]
NullIfEmpty = Annotated[T | None, BeforeValidator(lambda value: value or None)]


class Response(BaseModel):
    """Built from keywords, a dictionary, or an object whose attributes are the keys or their
    `source`."""

    model_config = ConfigDict(
        frozen=True, defer_build=True, validate_by_name=True, validate_by_alias=True
    )

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    def from_object(cls, value: object, **others: Any) -> Self:
        """From an object that lacks some keys, or of which some differ."""
        return cls.model_validate({**cls._keys_of(value, others), **others})

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | Response) else cls._keys_of(value)

    @classmethod
    def _keys_of(cls, value: object, without: Collection[str] = ()) -> dict[str, Any]:
        """The keys of an object; of optional ones those that have a `source`, unless it is None."""
        read = {}
        for name, field in cls.model_fields.items():
            path = str(field.validation_alias or name)
            if name not in without and (field.is_required() or field.validation_alias):
                read[path] = _follow(value, path)
                if read[path] is None and not field.is_required():
                    del read[path]
        return read


def source(path: str, default: Any = ...) -> Any:
    """Says that a key shows another attribute: `node.zone`, null if `node` is None."""
    return Field(default, validation_alias=path)


def _follow(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value
