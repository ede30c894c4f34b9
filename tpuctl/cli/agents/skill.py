"""The `skill` command: one page about tpuctl for coding agents.

The page is made from the same help, effects and errors as the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tpuctl.cli import responses
from tpuctl.cli.help.commands import COMMANDS, EFFECTS, Effect
from tpuctl.cli.state import State

# The front matter is that of agent skills: https://agentskills.io/specification
START = """\
---
name: tpuctl
description: >-
  Train models on Google Cloud TPUs with the tpuctl command line: check and rehearse a training
  script, see what a TPU costs, create it, run the script on it, read logs, find out why a job
  failed, and delete everything. Use it when a project has a tpuctl.yaml, or when the user wants to
  train with TensorFlow, JAX or PyTorch on a TPU.
---

# tpuctl

{about}
A stack is everything that one stack file, `tpuctl.yaml`, describes: TPU, bucket, network, accounts.
A job is one run of a script on it. Run tpuctl in the folder of the stack file.

## Before you run something that costs money

- A TPU is charged from `up` to `down`, by the hour, whether or not a job runs.
- Show the user the cost that `tpuctl plan` prints, and ask before `up`, `run --up`, or anything
  else listed below as what may cost money. Do not pass `--yes` to it without the user's consent.
- Take the stack down after the last job: `tpuctl down --yes`. It keeps the bucket with logs and
  results; `--delete-bucket` deletes them, so ask first. Exit code 1 means that something is still
  charged: repeat it.
- `tpuctl orphans --project PROJECT` finds what other stacks left behind.
- With `--cloud local` everything is free: see the end of this page.

## The main flow

```console
$ tpuctl init --yes --project PROJECT   # writes tpuctl.yaml for the scripts in the folder
$ tpuctl doctor                     # checks sign-in, billing, APIs, permissions, quota
$ tpuctl check train.py             # finds errors in the script, without running it
$ tpuctl rehearse train.py          # runs a few steps of it on this computer
$ tpuctl plan                       # what would be created, and its cost per hour
$ tpuctl up --yes                   # from here on, the TPU is charged
$ tpuctl run --detach train.py -- --steps 1000
$ tpuctl logs --tail 50             # later: tpuctl jobs, tpuctl wait, tpuctl explain
$ tpuctl down --yes
```

- Script arguments follow `--`. `tpuctl run -m package.train` runs a module, and
  `tpuctl run -- ./train.sh` a program. The script's folder is uploaded, without what `.gitignore`
  and `.tpuctlignore` name.
- Without `--detach`, `run` streams the log and exits with the job's exit code, after hours perhaps.
- The script writes checkpoints and results to `$TPUCTL_OUTPUT`, a gs:// folder, and loads the last
  checkpoint when it starts: a preempted job is restarted.
- After a failure, start with `tpuctl explain`. For an error of another command:
  `tpuctl explain --error 'TEXT'`.
- `up` and `down` may be repeated: they create what is missing, and delete what is left.
- `tpuctl help COMMAND` lists a command's options.
"""
END = """\
## Output for programs

With `--json`, every command prints one object, also when it fails:

```json
{"version": 1, "command": "plan", "status": "ok", "exit_code": 0, "data": {}, "diagnostics": []}
```

`data` depends on the command. Each of `diagnostics` has `summary`, `detail`, `hint` (what to do),
and `where`. Logs go to stderr. `--json --events` prints events as JSON lines first. Nothing prompts
without a terminal: what needs an answer fails with exit code 2 and names the option.
"""
LOCAL = """\
## Without an account, for free

`--cloud local` goes before or after any command, or set `TPUCTL_CLOUD=local`. It emulates Google
Cloud on this computer: `up` creates machines that are real processes behind real SSH, and the job
runs on the CPU. Use it to try a stack file, a script and its arguments from `up` to `down` first:

```console
$ tpuctl --cloud local up --yes
$ tpuctl --cloud local run train.py -- --steps 3
$ tpuctl --cloud local down --yes --delete-bucket
$ tpuctl local down                 # stops the emulator
```

`tpuctl rehearse --compile train.py` compiles the training step with the TPU's compiler, without a
TPU: whether it compiles, and the largest batch that fits.
"""
OTHER_EXIT_CODES = {
    0: "Success; for `run`, `wait` and `logs -f`: the job succeeded.",
    1: "Failed.",
    70: "A bug in tpuctl.",
    130: "Interrupted; a job continues.",
    143: "The job was stopped.",
}
JOB_EXIT_CODE = (
    "Otherwise, `run`, `wait`, `logs -f` and `ssh` exit with the exit code of what they ran."
)


def skill(context: typer.Context) -> None:
    """Print instructions for AI coding agents: what to run, what is safe, what may cost money.

    Save the page where your agent looks for skills or instructions.

    Example: tpuctl skill > .claude/skills/tpuctl/SKILL.md
    """
    state: State = context.obj
    text = skill_page(context.find_root().command)
    state.answer(lambda: responses.catalog.HelpText(text=text), lambda: print(text))


def skill_page(root: Any) -> str:
    """The page, in Markdown. `root` is the command line."""
    about = " ".join(root.help.split())
    lines = [START.format(about=about), "## Commands", ""]
    for effect in Effect:
        lines += [f"What {effect.value}:", "", *_commands(root, effect), ""]
    lines += [END, "## Exit codes", "", *_exit_codes(), "", JOB_EXIT_CODE, "", LOCAL]
    return "\n".join(lines).rstrip()


def _commands(root: Any, effect: Effect) -> Iterator[str]:
    """The commands with this effect, then the subcommands and options."""
    from tpuctl.cli.help.help_pages import summary_of

    for name, entry in COMMANDS.items():
        if entry.effect is effect:
            yield f"- `tpuctl {name}`: {summary_of(root.get_command(None, name))}."
    for words in (words for words in EFFECTS if EFFECTS[words] is effect):
        yield f"- `tpuctl {words}`: {_what_it_does(root, words)}"


def _what_it_does(root: Any, words: str) -> str:
    """The help of a subcommand, or of a command's option."""
    from tpuctl.cli.help.help_pages import summary_of

    name, _, rest = words.partition(" ")
    command = root.get_command(None, name)
    if not rest.startswith("-"):
        return f"{summary_of(command.get_command(None, rest))}."
    return next(str(option.help) for option in command.params if rest in option.opts)


def _exit_codes() -> Iterator[str]:
    from tpuctl import errors

    kinds = errors.TpuctlError.__subclasses__()
    codes = {kind.exit_code: (kind.__doc__ or "").splitlines()[0] for kind in kinds}
    codes |= OTHER_EXIT_CODES
    for code in sorted(codes):
        yield f"- {code}: {codes[code]}"
