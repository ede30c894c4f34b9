"""TPU types by the names people know, such as `v5e-8`, `V5LITEPOD-4` and `trillium`.

Google's API knows only the names in the catalog; all others are replaced by these on the way in.

Sources: docs.cloud.google.com/tpu/docs call generations v5e, Trillium and Ironwood; JAX shows
`TPU v5 lite`, and SkyPilot writes `tpu-v5e-8`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from functools import cache

from tpuctl.catalog.tpu import AcceleratorType, accelerator_type, accelerator_types

__all__ = ["canonical_type", "nearest_types", "type_named", "type_pattern"]

_OTHER_NAMES: Mapping[str, str] = {  # by them, generations
    "v5lite": "v5e",
    "v5-lite": "v5e",
    "trillium": "v6e",
    "ironwood": "tpu7x",
    "v7x": "tpu7x",
    "v7": "tpu7x",
}
_MIN_SIMILARITY = 0.7  # of a mistyped name to a generation's


@cache
def _prefixes() -> Mapping[str, str]:
    """What the names of each generation's types begin with: `v5litepod` for v5e."""
    return {
        accelerator.generation: accelerator.name.rpartition("-")[0]
        for accelerator in accelerator_types().values()
    }


@cache
def _generations() -> Mapping[str, str]:
    """Generations by all of their names, the longest name first."""
    names = {**_OTHER_NAMES}
    for generation, prefix in _prefixes().items():
        names |= {generation: generation, prefix: generation}
    with_tpu = {f"tpu{dash}{name}": of for name, of in names.items() for dash in ("", "-")}
    return dict(sorted({**with_tpu, **names}.items(), key=lambda item: -len(item[0])))


def _split(name: str) -> tuple[str, str]:
    """The generation that a name begins with, and the rest; an empty generation if none does."""
    word = re.sub(r"[\s_]+", "-", name.strip().lower())
    for spelling, generation in _generations().items():
        if word.startswith(spelling):
            return generation, word.removeprefix(spelling)
    return "", word


def canonical_type(name: str) -> str:
    """The catalog's name for a type, a pattern of types, or a generation; other texts unchanged.

    `v5e-8` and `TPU-V5LITEPOD-8` are `v5litepod-8`, `trillium-*` is `v6e-*`, `ironwood` is `tpu7x`.
    """
    generation, rest = _split(name)
    if generation and not rest:
        return generation
    return f"{_prefixes()[generation]}{rest}" if generation and rest[0] in "-*?[" else name


def type_pattern(name: str) -> str:
    """Like `canonical_type`; a generation is a pattern of all of its types: `v5litepod-*`."""
    canonical = canonical_type(name)
    prefix = _prefixes().get(canonical)
    return f"{prefix}-*" if prefix else canonical


def type_named(name: str) -> AcceleratorType | None:
    """The type that a name means; for a generation, its smallest. None for other names.

    Types of Compute Engine alone do not count as the smallest of a generation that the Cloud TPU
    API offers too.
    """
    canonical = canonical_type(name)
    sizes = [
        accelerator
        for accelerator in accelerator_types().values()
        if accelerator.generation == canonical
    ]
    if not sizes:
        return accelerator_type(canonical)
    return min(sizes, key=lambda accelerator: (not accelerator.in_tpu_api, accelerator.chips))


def nearest_types(name: str, count: int = 3) -> tuple[str, ...]:
    """Types of similar size in the generation that a mistyped name means, best first.

    Empty if it may mean several generations: they differ too much to be mistaken for each other.
    """
    generation, rest = _split(name)
    if not generation:
        generation = _nearest_generation(re.sub(r"-?\d*$", "", rest))
    names = [
        accelerator.name
        for accelerator in accelerator_types().values()
        if accelerator.generation == generation
    ]
    size = int(match[0][:9]) if (match := re.search(r"\d+$", rest)) else 0
    return tuple(sorted(names, key=lambda type_name: _distance(type_name, size))[:count])


def _nearest_generation(word: str) -> str:
    by_similarity: dict[float, set[str]] = {}
    for spelling, generation in _generations().items():
        ratio = difflib.SequenceMatcher(None, word, spelling).ratio()
        by_similarity.setdefault(ratio, set()).add(generation)
    best = max(by_similarity)
    (first, *others) = by_similarity[best]
    return first if best >= _MIN_SIMILARITY and not others else ""


def _distance(type_name: str, size: int) -> float:
    return abs(math.log(int(type_name.rpartition("-")[2]) / max(size, 1)))
