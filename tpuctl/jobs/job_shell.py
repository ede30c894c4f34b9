"""Shell commands in the environment of a worker's latest job: its packages, and its variables."""

from __future__ import annotations

import shlex

_FILE = "~/.tpuctl/environment.sh"  # written by `shipped/preparation.py` when a job starts
# After the profile, which may replace PATH. The last shell is the user's own, and interactive.
_ENTER = f"""\
. {_FILE}
test -t 0 && echo "This shell has the environment of job $TPUCTL_JOB."
exec "$SHELL"
"""
_LOG_IN = f"""\
[ -r {_FILE} ] || exec "$SHELL" -l
exec "$SHELL" -lc {shlex.quote(f"exec sh -c {shlex.quote(_ENTER)}")}
"""
JOB_SHELL = f"exec sh -c {shlex.quote(_LOG_IN)}"
# As sshd runs a command, so that nothing else has it in its command line (for `pkill -f`). Bash of
# Debian would read ~/.bashrc for it again (SSH_SOURCE_BASHRC), unless it is in another shell.
_RUN = f"""\
[ -r {_FILE} ] && . {_FILE}
export SHLVL=1
exec "${{SHELL:-sh}}" -c "$1"
"""


def in_job_environment(line: str) -> str:
    """The shell command `line`, run by the user's shell with the job's settings, if any."""
    return f"exec sh -c {shlex.quote(_RUN)} sh {shlex.quote(line)}"
