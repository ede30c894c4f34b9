"""Names of resources of one API that another one refers to: networks, disks."""

from __future__ import annotations

import re

from tpuctl.emulator.state.projects import Directory

__all__ = ["full_network", "short"]


def full_network(directory: Directory, project: str, text: str) -> str:
    """The full name of a network that was given as a link, in part, by name, or not at all.

    The project in it may be given by number, as gcloud does.
    """
    found = re.search(r"projects/([^/]+)/global/networks/([^/]+)$", text)
    owner, name = (found[1], found[2]) if found else (project, text.rpartition("/")[2])
    known = directory.find(owner)
    return f"projects/{known['id'] if known else owner}/global/networks/{name or 'default'}"


def short(link: str) -> str:
    """A link without what comes before `projects/`: links come whole, in part, or as names."""
    found = re.search(r"projects/[^/]+/.+$", link)
    return found[0] if found else link
