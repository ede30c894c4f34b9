"""Extras and dependency groups of a project, as `job.requirements` names them: uv.lock[tpu]."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tpuctl.errors import Usage

SETTING = re.compile(r"(?P<path>.*?)\s*\[(?P<names>[^\[\]]*)\]")
EXTRA, GROUP = "extra:", "group:"


class DependencySets(NamedTuple):
    """Normalized names."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def split_setting(setting: str) -> tuple[str, list[str]]:
    """A file and the names in brackets behind it: `("uv.lock", ["tpu"])`."""
    match = SETTING.fullmatch(setting)
    if match is None:
        return setting, []
    return match["path"], [name.strip() for name in match["names"].split(",") if name.strip()]


def choose_sets(
    names: Sequence[str], extras: Collection[str], groups: Collection[str], file: str
) -> DependencySets:
    """Which of a file's extras and groups the names stand for: a name is an extra's or, if there is
    none, a group's; `extra:` or `group:` before it decides. Raises Usage."""
    extras_by_name = {normalize(extra): extra for extra in extras}
    groups_by_name = {normalize(group): group for group in groups}
    chosen_extras, chosen_groups = list[str](), list[str]()
    for name in names:
        prefix = next((prefix for prefix in (EXTRA, GROUP) if name.startswith(prefix)), "")
        key = normalize(name.removeprefix(prefix))
        is_extra = key in extras_by_name and prefix != GROUP
        is_group = key in groups_by_name and prefix != EXTRA
        if is_extra and is_group:
            raise Usage(
                "Ambiguous name of an extra",
                f"{file} has an extra and a dependency group {key!r}",
                where="job.requirements",
                hint="Set which of them the job installs:\n"
                f"    job: {{requirements: '{file}[{EXTRA}{key}]'}}\n"
                f"    job: {{requirements: '{file}[{GROUP}{key}]'}}",
            )
        if not is_extra and not is_group:
            raise _unknown(name, extras, groups, file)
        (chosen_extras if is_extra else chosen_groups).append(key)
    return DependencySets(tuple(dict.fromkeys(chosen_extras)), tuple(dict.fromkeys(chosen_groups)))


def _unknown(name: str, extras: Collection[str], groups: Collection[str], file: str) -> Usage:
    extras_text, groups_text = (", ".join(sorted(listed)) or "none" for listed in (extras, groups))
    kind = "extra or dependency group"
    for prefix, title in ((EXTRA, "extra"), (GROUP, "dependency group")):
        if name.startswith(prefix):
            kind, name = title, name.removeprefix(prefix)
    return Usage(
        "Unknown extra",
        f"{file} has no {kind} {name!r}; it has extras: {extras_text}; groups: {groups_text}",
        where="job.requirements",
        hint="Use one of these in job.requirements, or add it to pyproject.toml.",
    )


def normalize(name: str) -> str:
    """The normalized form of a name (packaging.python.org, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
