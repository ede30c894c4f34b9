"""Names the catalogue knows: what is none of them is refused with the nearest that is."""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = [
    "regions",
    "require_generations",
    "require_regions",
    "require_type",
    "require_types",
    "require_zones",
]


def require_type(name: str) -> None:
    from tpuctl.catalog import accelerator_types

    if name and name not in accelerator_types():
        raise _unknown_type(name)


def require_types(text: str) -> tuple[str, ...] | None:
    """The types that `v3-8`, `v5e`, `v6e-*` or several with commas name; None for no text."""
    from tpuctl.catalog import accelerator_types, generations, matching

    known = accelerator_types()
    found: list[str] = []
    for word in _words(text):
        if word in generations():
            found += (one.name for one in known.values() if one.generation == word)
            continue
        named = matching(word, known)
        if not named:
            raise _unknown_type(word)
        found += named
    return tuple(dict.fromkeys(found)) or None


def require_generations(text: str) -> tuple[str, ...] | None:
    from tpuctl.catalog import generations

    return _all_of(text, "TPU generation", "there is no generation {}", generations())


def require_zones(text: str, known: Collection[str]) -> tuple[str, ...] | None:
    """Those of the known zones that the text names; None for no text."""
    from tpuctl.catalog import region_of

    for word in _words(text):
        if any(region_of(zone) == word for zone in known):
            hint = f"Give a zone of it, or the region:\n    --region {word}"
            raise _refusal("zone", f"{word} is a region", hint)
    return _all_of(text, "zone", "no TPU is offered in {}", known, "tpuctl zones")


def require_regions(text: str, known: Collection[str]) -> tuple[str, ...] | None:
    """The regions of known zones that the text names; None for no text."""
    from tpuctl.catalog import region_of

    names = sorted({region_of(zone) for zone in known})
    return _all_of(text, "region", "no TPU is offered in {}", names, "tpuctl zones --sort region")


def regions() -> list[str]:
    """Every region with some TPU type."""
    from tpuctl.catalog import region_of
    from tpuctl.catalog import zones as every_zone

    return sorted({region_of(zone) for zone in every_zone()})


def _words(text: str) -> list[str]:
    return [word for part in text.lower().split(",") if (word := part.strip())]


def _all_of(
    text: str, what: str, detail: str, known: Collection[str], command: str = ""
) -> tuple[str, ...] | None:
    from tpuctl.catalog import matching

    found: list[str] = []
    for word in _words(text):
        named = matching(word, known)
        if not named:
            raise _unknown(what, detail.format(word), word, known, command)
        found += named
    return tuple(dict.fromkeys(found)) or None


def _unknown_type(name: str) -> Exception:
    from tpuctl.catalog import accelerator_types, generations

    known = accelerator_types()
    if name.startswith("v5e-") and (meant := f"v5litepod-{name[4:]}") in known:
        return _refusal("TPU type", f"there is no type {name}", f"Did you mean {meant}?")
    if "-" not in name:  # meant as a generation
        hint = f"There are {', '.join(generations())}, and types of them:\n    tpuctl types"
        return _refusal("TPU type", f"there is no type or generation {name}", hint)
    return _unknown("TPU type", f"there is no type {name}", name, known, "tpuctl types")


def _unknown(
    what: str, detail: str, name: str, known: Iterable[str], command: str = ""
) -> Exception:
    from tpuctl.catalog import nearest

    names = list(known)
    like = nearest(name, names)
    if like:
        return _refusal(what, detail, f"Did you mean {', '.join(like)}?")
    hint = f"All of them:\n    {command}" if command else f"There are {', '.join(names)}."
    return _refusal(what, detail, hint)


def _refusal(what: str, detail: str, hint: str) -> Exception:
    from tpuctl.errors import Usage

    return Usage(f"Unknown {what}", detail, hint=hint)
