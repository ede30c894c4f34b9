"""Completes the commands in hints with the script and the job that they are about, so that they
can be pasted."""

from __future__ import annotations

import re
import shlex

from tpuctl.model.jobs.job import JobRecord

# SCRIPT at the end of commands that take the script's arguments, and in any command.
WITH_ARGUMENTS = re.compile(
    r"(?m)^(\s+tpuctl (?:--cloud local )?(?:run|rehearse)(?! --compile)(?: .*)? )SCRIPT$"
)
SCRIPT = re.compile(r"(?m)^(\s+tpuctl .* )SCRIPT(?=\s|$)")
# Commands that would take the latest job.
OF_A_JOB = re.compile(r"(?m)^(\s+tpuctl (?:explain|logs|report|wait))(?=$| -(?!-error|\s))")
# Commands that name their stack by options if it has no file, up to what follows them.
OF_A_STACK = re.compile(
    r"(?m)^(\s+tpuctl (?:--cloud local )?(?:down|explain|jobs|logs|report|ssh|status|stop|wait)\b"
    r"(?!.* (?:--stack|--error) )(?:(?! --? |  #).)*?)(?=$| -- |  #)"
)
# Commands that create such a stack, or run something on it.
OF_A_TPU = re.compile(
    r"(?m)^(\s+tpuctl (?:--cloud local )?)(?:(run)(?! .*--tpu )(?: --up| --down)*|up$|plan$)"
)
NOTEBOOK = re.compile(r"(?m)^(\s+tpuctl )run SCRIPT$")


def with_script(text: str, script: str, command: str = "") -> str:
    """The hint with this script in place of SCRIPT, quoted for a shell.

    `command` is the script with its arguments, for commands that run it.
    """
    text = WITH_ARGUMENTS.sub(lambda match: match[1] + (command or script), text)
    return SCRIPT.sub(lambda match: match[1] + script, text)


def with_job(text: str, job: str) -> str:
    """The hint with this job in commands that would take the latest."""
    return OF_A_JOB.sub(lambda match: f"{match[1]} {job}", text)


def with_stack(text: str, options: str) -> str:
    """The hint with these options, such as `--stack bert --project my-project`, in commands that
    would read the stack file."""
    return OF_A_STACK.sub(lambda match: f"{match[1]} {options}", text)


def with_tpu(text: str, options: str) -> str:
    """The hint with these options of `run`, such as `--tpu v6e-1`, in place of a stack file."""
    return OF_A_TPU.sub(
        lambda match: f"{match[1]}run {options}" + ("" if match[2] else " SCRIPT"), text
    )


def about_job(text: str, record: JobRecord) -> str:
    """The hint for this job: it is run again as it was submitted, and its log is meant."""
    if record.kind == "notebook":
        text = NOTEBOOK.sub(r"\1notebook", text)
    elif record.kind == "shell":
        text = WITH_ARGUMENTS.sub(lambda match: match[1] + record.typed_command, text)
    else:
        module = "-m " if record.kind == "module" else ""
        program = record.script if module else record.script_path
        text = with_script(text, module + shlex.quote(program), record.typed_command)
    return with_job(text, record.id)
