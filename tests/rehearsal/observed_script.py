"""Runs a script observed, in a fork of a Python that has loaded TensorFlow or JAX.

    observed_script.py FOLDER_OF_THE_SHIM SCRIPT [ARGUMENT …]

As when Python starts: the shim's `sitecustomize` before the script, and the hooks of its exit after
it. The shim observes modules that are loaded already, too.
"""

import atexit
import os
import runpy
import sys

_, shim, *sys.argv = sys.argv
sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))  # noqa: PTH120 - like Python
runpy.run_path(os.path.join(shim, "sitecustomize.py"))  # noqa: PTH118
code: object = 0
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    code = end.code or 0
except BaseException:
    sys.excepthook(*sys.exc_info())
    code = 1
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(code if isinstance(code, int) else 1)
