"""What runs in the runtime's Python, around a script that knows nothing of it.

`sitecustomize.py` is found first on the import path of every Python that a rehearsal starts. It
loads this folder as a package under a name that no script uses (`NAME`), so that no module here
can be taken for one of the script's. Nothing here imports tpuctl, and tpuctl imports nothing of it:
what passes between them are lines in a file (tpuctl/preflight/rehearsal/observations.py).

Everything is written so that the script goes on without it: what fails here is written down, and
the script's own call is made all the same.
"""

__all__: list[str] = []
