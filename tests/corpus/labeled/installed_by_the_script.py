import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "-q", "tensorflow==2.17.0"], check=True)
subprocess.run([sys.executable, "-m", "pip", "install", "-q", "tensorflow-text"], check=True)

import tensorflow as tf

print(tf.__version__)
