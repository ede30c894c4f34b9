"""The table of commands: their groups, in the order to meet them, and where each is defined.

It is what lets the root's help, and the completion of a command's name, import no command; and it
keeps all of them, together, within one screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["COMMANDS", "GROUPS", "LEFT_COLUMN", "SYNONYMS", "Entry", "nearest_command"]


class Entry(NamedTuple):
    module: str  # of tpuctl.cli: its `register` makes the command
    summary: str  # at most 27 characters: two columns stand beside each other


GROUPS: Mapping[str, Mapping[str, Entry]] = {
    "First steps": {
        "init": Entry("init", "write a stack file, a job"),
        "doctor": Entry("doctor", "look whether all is ready"),
    },
    "Stack": {
        "plan": Entry("stack", "what `up` would do, cost"),
        "up": Entry("stack", "bring the stack up"),
        "status": Entry("stack", "what exists, cost so far"),
        "down": Entry("stack", "take all of it away"),
        "orphans": Entry("stack", "what stacks left behind"),
    },
    "Jobs": {
        "check": Entry("check", "find what would fail"),
        "rehearse": Entry("rehearse", "a few steps, here"),
        "run": Entry("run", "run a script, follow it"),
        "jobs": Entry("job", "list jobs, or show one"),
        "logs": Entry("job", "show or follow a log"),
        "wait": Entry("job", "wait for a job's end"),
        "stop": Entry("job", "stop a job"),
        "explain": Entry("explain", "why it failed, what helps"),
        "report": Entry("report", "a page about a run"),
    },
    "Machines": {
        "ssh": Entry("machine", "a shell on a worker"),
        "cp": Entry("machine", "copy files"),
        "forward": Entry("machine", "reach a worker's port"),
    },
    "Catalog": {
        "types": Entry("catalog", "TPU types"),
        "zones": Entry("catalog", "where they are offered"),
        "runtimes": Entry("catalog", "what they run"),
        "prices": Entry("catalog", "what an hour costs"),
        "quota": Entry("catalog", "how many you may have"),
    },
    "More": {
        "local": Entry("local", "a cloud of your own, here"),
        "ci": Entry("ci", "write a pipeline"),
        "help": Entry("topics", "more on a command"),
    },
}

LEFT_COLUMN = ("First steps", "Stack", "Machines", "More")  # where there is room for two columns

COMMANDS: Mapping[str, Entry] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}

# What other programs call the same things.
SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("create", "apply", "start", "provision", "launch", "deploy"), "up"),
    **dict.fromkeys(("destroy", "delete", "rm", "remove", "teardown", "terminate"), "down"),
    **dict.fromkeys(("submit", "train", "execute"), "run"),
    **dict.fromkeys(("exec", "shell", "login", "connect"), "ssh"),
    **dict.fromkeys(("scp", "copy", "rsync", "upload", "download"), "cp"),
    **dict.fromkeys(("tunnel", "port-forward", "proxy", "tensorboard"), "forward"),
    **dict.fromkeys(("kill", "cancel", "abort"), "stop"),
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
    "man": "help",
}


def nearest_command(word: str, candidates: Sequence[str]) -> str | None:
    """The command that was probably meant."""
    from tpuctl.spelling import nearest

    word = word.lower()
    begun = [name for name in candidates if name.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    if (synonym := SYNONYMS.get(word)) in candidates:
        return synonym
    return next(iter(nearest(word, candidates, 1)), None)
