"""Shared VPC: which projects may use the networks of a host project."""

from __future__ import annotations

from tpuctl.emulator.state.store import Store

HOSTS = "compute.xpnHosts"  # kind in the store: the projects that share their networks
ATTACHED = "compute.xpnResources"  # kind in the store: the host of each service project


def host_of(store: Store, project: str) -> str:
    """The host project that a project is attached to, or ""."""
    host = store.get(ATTACHED, project)
    return host.decode() if host else ""


def may_use(store: Store, project: str, owner: str) -> bool:
    """Whether a project may refer to networks of `owner`: its own, or its host."""
    return owner in (project, host_of(store, project))
