"""Names of resources that other APIs refer to: networks, disks."""

from __future__ import annotations

import re

from tpuctl.emulator.state.projects import Directory


def full_network(directory: Directory, project: str, text: str) -> str:
    """The full name of a network given as a link, a partial link, a bare name, or "".

    The project in it may be given by number, as gcloud does.
    """
    match = re.search(r"projects/([^/]+)/global/networks/([^/]+)$", text)
    owner, name = (match[1], match[2]) if match else (project, text.rpartition("/")[2])
    record = directory.find(owner)
    return f"projects/{record['id'] if record else owner}/global/networks/{name or 'default'}"


def relative_name(link: str) -> str:
    """A full or partial link without anything before `projects/`; bare names are unchanged."""
    match = re.search(r"projects/[^/]+/.+$", link)
    return match[0] if match else link
