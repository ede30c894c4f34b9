"""A script that does without TensorFlow, starts another, and has modules of any name."""

import os
import subprocess
import sys

import settings

print(settings.TEXT, " ".join(sys.argv[1:]), flush=True)
print("shim on the path:", any("simulated_tpu" in entry for entry in sys.path), flush=True)
if sys.argv[1:2] == ["parent"]:
    subprocess.run([sys.executable, __file__, "child"], check=True)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    os._exit(7)
