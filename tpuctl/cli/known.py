"""Names the catalogue knows: what is none of them is refused with the nearest that is."""

from __future__ import annotations

__all__ = ["regions", "require_region", "require_type", "require_zone"]


def require_type(name: str) -> None:
    from tpuctl.catalog import accelerator_types, nearest
    from tpuctl.errors import Usage

    if name and name not in accelerator_types():
        like = nearest(name, accelerator_types())
        hint = f"Did you mean {', '.join(like)}?" if like else "All of them:\n    tpuctl types"
        raise Usage("Unknown TPU type", f"there is no type {name}", hint=hint)


def require_zone(name: str) -> None:
    from tpuctl.catalog import nearest
    from tpuctl.catalog import zones as every_zone
    from tpuctl.errors import Usage

    if name and name not in every_zone():
        like = nearest(name, every_zone())
        hint = f"Did you mean {', '.join(like)}?" if like else "All of them:\n    tpuctl zones"
        raise Usage("Unknown zone", f"no TPU is offered in {name}", hint=hint)


def require_region(name: str) -> None:
    from tpuctl.catalog import nearest
    from tpuctl.errors import Usage

    if name and name not in regions():
        like = nearest(name, regions())
        hint = f"Did you mean {', '.join(like)}?" if like else "All zones:\n    tpuctl zones"
        raise Usage("Unknown region", f"no TPU is offered in {name}", hint=hint)


def regions() -> list[str]:
    """Every region with some TPU type."""
    from tpuctl.catalog import region_of
    from tpuctl.catalog import zones as every_zone

    return sorted({region_of(zone) for zone in every_zone()})
