"""The table of commands: groups in display order, and the module that defines each command.

With it, the root help and the completion of command names import no command module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple


class Effect(Enum):
    """The most that a command may do, for people and programs that decide whether to run it."""

    READS = "changes nothing"
    LOCAL = "changes this computer only"
    CHANGES = "changes what exists in the cloud, for no additional cost"
    DELETES = "deletes or stops something in the cloud"
    COSTS = "may cost money"


class Entry(NamedTuple):
    module: str  # of tpuctl.cli, with a function of its name, or `register`, which adds it
    summary: str  # at most 26 characters: the help has two columns
    effect: Effect
    is_in_overview: bool = True  # of all commands, which is one screen


GROUPS: Mapping[str, Mapping[str, Entry]] = {
    "First steps": {
        "init": Entry("stack.init", "write a stack file and job", Effect.LOCAL),
        "doctor": Entry("doctor", "check that you are ready", Effect.READS),
    },
    "Stack": {
        "plan": Entry("stack.stack", "preview changes and cost", Effect.READS),
        "up": Entry("stack.stack", "create or update the stack", Effect.COSTS),
        "status": Entry("stack.stack", "show resources and cost", Effect.READS),
        "dashboard": Entry("stack.dashboard", "watch it all in a browser", Effect.READS),
        "down": Entry("stack.stack", "delete the stack", Effect.DELETES),
        "orphans": Entry("stack.stack", "find leftover resources", Effect.READS),
    },
    "Jobs": {
        "check": Entry("jobs.check", "find errors before running", Effect.READS),
        "rehearse": Entry("jobs.rehearse", "run a few steps locally", Effect.LOCAL),
        "run": Entry("jobs.run", "run a script on the TPU", Effect.COSTS),
        "jobs": Entry("jobs.job", "list, show, compare jobs", Effect.READS),
        "logs": Entry("jobs.job", "show or follow a log", Effect.READS),
        "wait": Entry("jobs.job", "wait for a job to end", Effect.COSTS),
        "stop": Entry("jobs.job", "stop a job", Effect.DELETES),
        "profile": Entry("jobs.job", "trace a running job", Effect.CHANGES),
        "notify": Entry("jobs.notify", "test notifications", Effect.CHANGES, is_in_overview=False),
        "explain": Entry("jobs.explain", "explain a failure", Effect.READS),
        "report": Entry("jobs.report", "write an HTML report", Effect.LOCAL),
    },
    "Machines": {
        "ssh": Entry("machines.machine", "open a shell on a worker", Effect.CHANGES),
        "cp": Entry("machines.machine", "copy files to and from", Effect.CHANGES),
        "forward": Entry("machines.machine", "forward a worker's port", Effect.READS),
        "notebook": Entry("machines.notebook", "open JupyterLab on the TPU", Effect.COSTS),
        "ssh-config": Entry("machines.machine", "set up hosts for ssh", Effect.LOCAL),
    },
    "Catalog": {
        "types": Entry("catalog.types", "list TPU types", Effect.READS),
        "zones": Entry("catalog.zones", "list zones with TPUs", Effect.READS),
        "runtimes": Entry("catalog.runtimes", "list runtime versions", Effect.READS),
        "prices": Entry("catalog.prices", "show hourly prices", Effect.READS),
        "quota": Entry("catalog.quota", "show quota and limits", Effect.READS),
    },
    "More": {
        "local": Entry("local.local", "emulate the cloud locally", Effect.LOCAL),
        "ci": Entry("ci.ci", "write a CI pipeline", Effect.LOCAL),
        "export": Entry("jobs.export", "write a job for GKE", Effect.CHANGES, is_in_overview=False),
        "debug-dump": Entry("debug_dump", "write a bug report", Effect.LOCAL),
        "skill": Entry("agents.skill", "guide AI agents; see mcp", Effect.READS),
        "mcp": Entry("agents.mcp", "serve tools to AI agents", Effect.LOCAL, is_in_overview=False),
        "help": Entry("help.topics", "show help for a command", Effect.READS, is_in_overview=False),
    },
}

LEFT_COLUMN = ("First steps", "Stack", "Machines")  # where there is room for two columns
IN_ONE_LINE = ("Catalog",)  # groups whose names say enough for the list of all commands

COMMANDS: Mapping[str, Entry] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}

# Subcommands and options that do more than the command itself.
EFFECTS: Mapping[str, Effect] = {
    "check --fix": Effect.LOCAL,
    "logs --follow": Effect.COSTS,  # like wait: it restarts a preempted job on a new TPU
    "jobs run": Effect.COSTS,
    "ci start": Effect.COSTS,
    "ci follow": Effect.COSTS,
    "mcp --allow-spending": Effect.COSTS,
}

# Names of the same commands in other tools.
SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("create", "apply", "start", "provision", "launch", "deploy"), "up"),
    **dict.fromkeys(("destroy", "delete", "rm", "remove", "teardown", "terminate"), "down"),
    **dict.fromkeys(("submit", "train", "execute"), "run"),
    **dict.fromkeys(("exec", "shell", "login", "connect"), "ssh"),
    **dict.fromkeys(("scp", "copy", "upload", "download"), "cp"),
    **dict.fromkeys(("jupyter", "jupyterlab", "lab", "ipython"), "notebook"),
    **dict.fromkeys(("config-ssh", "vscode", "code", "mosh", "rsync", "git"), "ssh-config"),
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
    **dict.fromkeys(("ui", "web", "gui", "browser"), "dashboard"),
    **dict.fromkeys(("github", "gitlab", "cloudbuild", "pipeline"), "ci"),
    **dict.fromkeys(("gke", "kubernetes", "k8s", "jobset", "kueue", "xpk"), "export"),
    **dict.fromkeys(("emulator", "simulate"), "local"),
    **dict.fromkeys(("simulator", "dryrun", "test"), "rehearse"),
    **dict.fromkeys(("why", "debug", "diagnose"), "explain"),
    **dict.fromkeys(("leaks", "prune", "gc", "clean"), "orphans"),
    **dict.fromkeys(("support", "bug-report", "dump", "sosreport", "collect"), "debug-dump"),
    **dict.fromkeys(("agent", "agents", "agents.md", "prompt"), "skill"),
    **dict.fromkeys(("serve", "server"), "mcp"),
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
