"""Conditions of bindings, in the Common Expression Language.

holds('resource.name.startsWith("projects/_/buckets/b/objects/in/")', {"resource.name": ...})

Attributes are `resource.name`, `resource.type`, `resource.service` and `request.time`. A condition
that is invalid, or that depends on another attribute or function, is false: it grants nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celpy import Runner
    from celpy.celtypes import StringType, TimestampType
    from celpy.evaluation import CELFunction

log = logging.getLogger(__name__)


def holds(expression: str, attributes: Mapping[str, str | datetime]) -> bool:
    """Evaluate the condition; the reason why one cannot be evaluated is logged."""
    # Imported here because it takes 0.3 s, and few policies have conditions.
    from celpy.celparser import CELParseError
    from celpy.celtypes import BoolType, MapType, StringType, TimestampType
    from celpy.evaluation import CELEvalError

    objects: dict[str, MapType] = {}
    for name, value in attributes.items():
        outer, _, inner = name.partition(".")
        typed = StringType(value) if isinstance(value, str) else TimestampType(value)
        objects.setdefault(outer, MapType())[StringType(inner)] = typed
    try:
        result = _compile(expression).evaluate(objects)
    except (CELParseError, CELEvalError, RecursionError) as error:
        log.warning("unsupported condition grants nothing: %s: %s", expression, error)
        return False
    if not isinstance(result, BoolType):
        log.warning("condition is not a boolean, and grants nothing: %s", expression)
        return False
    return bool(result)


@cache
def _compile(expression: str) -> Runner:
    import celpy

    environment = celpy.Environment()
    functions: dict[str, CELFunction] = {"extract": _extract, "timestamp": _timestamp}
    return environment.program(environment.compile(expression), functions)


def _extract(text: StringType, template: StringType) -> StringType:
    """The part of the text where the template has `{name}`, "" if the text does not match.

    cloud.google.com/iam/docs/conditions-attribute-reference, "Extract function".
    """
    before, _, rest = template.partition("{")
    after = rest.partition("}")[2]
    start = text.find(before) + len(before)
    end = text.find(after, start) if after else len(text)
    return type(text)(text[start:end] if before in text and end >= 0 else "")


def _timestamp(text: StringType) -> TimestampType:
    """As RFC 3339 requires, with a time zone; celpy's own assumes UTC."""
    from celpy.celtypes import TimestampType

    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return TimestampType(time)
