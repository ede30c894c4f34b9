import os

import tensorflow as tf

api_key = os.environ["WANDB_API_KEY"]
token = os.environ.get("HF_TOKEN", "")
password = os.getenv("DB_PASSWORD")
print(tf.__version__, bool(api_key), bool(token), bool(password))
