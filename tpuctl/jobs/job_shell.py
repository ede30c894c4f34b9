"""Shell commands in the environment of a worker's latest job: its packages, and its variables."""

from __future__ import annotations

__all__ = ["JOB_SHELL", "in_job_environment"]

# Written by `shipped/preparation.py` when a job starts.
_FILE = "~/.tpuctl/environment.sh"
_NOTICE = 'test -t 0 && echo "This shell has the environment of job $TPUCTL_JOB."'
# A login shell first: its profile may set PATH anew. The one in it is the user's, with ~/.bashrc.
JOB_SHELL = f"""\
if [ -r {_FILE} ]; then exec "$SHELL" -lc '. {_FILE}; {_NOTICE}; exec "$SHELL"'; fi; \
exec "$SHELL" -l"""


def in_job_environment(line: str) -> str:
    """The shell command `line`, run with the job's settings if there are any."""
    return f"if [ -r {_FILE} ]; then . {_FILE}; fi; {line}"
