"""Observes an unmodified script from inside the runtime's Python.

`sitecustomize.py` is first on the import path of every Python that a rehearsal starts. It loads
this folder as a package under a unique name (`PACKAGE`), so that its modules cannot shadow those
of the script. The shim and tpuctl do not import each other; they communicate through lines in a
file (tpuctl/preflight/rehearsal/observations.py).

Errors in the shim are recorded and never propagate: the script's own call is made in any case.
"""
