"""Starts the hooks; Python imports this module automatically before the script.

Without one of the variables in the environment, or if anything fails here, the script runs as if
this file did not exist. A sitecustomize that this one hides is imported after it.

Every Python of a machine imports this file: it imports nothing that Python has not loaded already.
"""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "_tpuctl"
# The module that is started if the variable is set; the first one alone.
STARTED = {
    "TPUCTL_REHEARSAL": "preflight.shim.install",
    "TPUCTL_TPU_DEVICES": "simulated_tpu.machine",
}


def start() -> None:
    for variable, name in STARTED.items():
        if os.environ.get(variable) and PACKAGE not in sys.modules:
            package = type(sys)(PACKAGE)
            package.__path__ = [os.path.dirname(HERE)]
            sys.modules[PACKAGE] = package
            try:
                module = __import__(f"{PACKAGE}.{name}", fromlist=["start"])
                module.start(os.environ)
            except Exception:
                import traceback

                traceback.print_exc()


def import_next() -> None:
    """Import the sitecustomize that this one hides, if any."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    module = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if module is not None:
            sys.modules.setdefault("sitecustomize", module)


start()
import_next()
