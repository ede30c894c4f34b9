"""The table of commands: groups in display order, and the module that defines each command.

With it, the root help and the completion of command names import no command module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = [
    "COMMANDS",
    "GROUPS",
    "LEFT_COLUMN",
    "SYNONYMS",
    "SYNONYMS_IN_GROUPS",
    "Entry",
    "nearest_command",
]


class Entry(NamedTuple):
    module: str  # of tpuctl.cli: its `register` makes the command
    summary: str  # at most 26 characters: the help has two columns
    is_in_overview: bool = True  # of all commands, which is one screen


GROUPS: Mapping[str, Mapping[str, Entry]] = {
    "First steps": {
        "init": Entry("init", "write a stack file and job"),
        "doctor": Entry("doctor", "check that you are ready"),
    },
    "Stack": {
        "plan": Entry("stack", "preview changes and cost"),
        "up": Entry("stack", "create or update the stack"),
        "status": Entry("stack", "show resources and cost"),
        "down": Entry("stack", "delete the stack"),
        "orphans": Entry("stack", "find leftover resources"),
    },
    "Jobs": {
        "check": Entry("check", "find errors before running"),
        "rehearse": Entry("rehearse", "run a few steps locally"),
        "run": Entry("run", "run a script on the TPU"),
        "jobs": Entry("job", "list jobs, or show one"),
        "logs": Entry("job", "show or follow a log"),
        "wait": Entry("job", "wait for a job to end"),
        "stop": Entry("job", "stop a job"),
        "profile": Entry("job", "trace a running job"),
        "explain": Entry("explain", "explain a failure"),
        "report": Entry("report", "write an HTML report"),
    },
    "Machines": {
        "ssh": Entry("machine", "open a shell on a worker"),
        "cp": Entry("machine", "copy files to and from"),
        "forward": Entry("machine", "forward a worker's port"),
    },
    "Catalog": {
        "types": Entry("catalog", "list TPU types"),
        "zones": Entry("catalog", "list zones with TPUs"),
        "runtimes": Entry("catalog", "list runtime versions"),
        "prices": Entry("catalog", "show hourly prices"),
        "quota": Entry("catalog", "show quota and limits"),
    },
    "More": {
        "local": Entry("local", "emulate the cloud locally"),
        "ci": Entry("ci", "write a CI pipeline"),
        "debug-dump": Entry("debug_dump", "write a bug report"),
        "help": Entry("topics", "show help for a command", is_in_overview=False),
    },
}

LEFT_COLUMN = ("First steps", "Stack", "Machines", "More")  # where there is room for two columns

COMMANDS: Mapping[str, Entry] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}

# Names of the same commands in other tools.
SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("create", "apply", "start", "provision", "launch", "deploy"), "up"),
    **dict.fromkeys(("destroy", "delete", "rm", "remove", "teardown", "terminate"), "down"),
    **dict.fromkeys(("submit", "train", "execute"), "run"),
    **dict.fromkeys(("exec", "shell", "login", "connect"), "ssh"),
    **dict.fromkeys(("scp", "copy", "rsync", "upload", "download"), "cp"),
    **dict.fromkeys(("tunnel", "port-forward", "proxy", "tensorboard"), "forward"),
    **dict.fromkeys(("kill", "cancel", "abort"), "stop"),
    **dict.fromkeys(("trace", "xprof", "profiler"), "profile"),
    **dict.fromkeys(("log", "tail", "follow", "attach"), "logs"),
    **dict.fromkeys(("ps", "ls", "list", "job", "history"), "jobs"),
    **dict.fromkeys(("new", "create-stack", "template", "templates"), "init"),
    **dict.fromkeys(("preflight", "setup", "auth"), "doctor"),
    **dict.fromkeys(("lint", "validate", "verify"), "check"),
    **dict.fromkeys(("diff", "preview", "dry-run"), "plan"),
    **dict.fromkeys(("show", "describe", "info", "watch", "top"), "status"),
    **dict.fromkeys(("cost", "costs", "price", "billing"), "prices"),
    **dict.fromkeys(("accelerators", "accelerator-types", "tpus", "machines"), "types"),
    **dict.fromkeys(("regions", "locations"), "zones"),
    **dict.fromkeys(("versions", "images"), "runtimes"),
    **dict.fromkeys(("limits", "quotas"), "quota"),
    **dict.fromkeys(("github", "gitlab", "cloudbuild", "pipeline"), "ci"),
    **dict.fromkeys(("emulator", "simulate"), "local"),
    **dict.fromkeys(("simulator", "dryrun", "test"), "rehearse"),
    **dict.fromkeys(("why", "debug", "diagnose"), "explain"),
    **dict.fromkeys(("leaks", "prune", "gc", "clean"), "orphans"),
    **dict.fromkeys(("support", "bug-report", "dump", "sosreport", "collect"), "debug-dump"),
    "man": "help",
}
# The same for commands of a group, such as `tpuctl local`.
SYNONYMS_IN_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("stop", "kill", "shutdown"), "down"),
    **dict.fromkeys(("list", "ls", "ps"), "status"),
    **dict.fromkeys(("clean", "clear", "wipe"), "reset"),
    **dict.fromkeys(("config", "settings"), "set"),
}


def nearest_command(word: str, candidates: Sequence[str]) -> str | None:
    """The command that was probably meant."""
    from tpuctl.spelling import nearest

    word = word.lower()
    begun = [name for name in candidates if name.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    for synonyms in (SYNONYMS, SYNONYMS_IN_GROUPS):
        if (synonym := synonyms.get(word)) in candidates:
            return synonym
    return next(iter(nearest(word, candidates, 1)), None)
