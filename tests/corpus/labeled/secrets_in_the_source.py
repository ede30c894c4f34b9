import os

import tensorflow as tf

os.environ["WANDB_API_KEY"] = "7f3c9a1b5e2d4f6a8b0c1d2e3f4a5b6c7d8e9f01"
HF_TOKEN = "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"
print(tf.__version__)
