"""What checks and trainings that are forked have loaded, as `pretrain.py` loads it."""

import os

import pretrain

os.environ.update({**pretrain.ENVIRONMENT, **os.environ})

import result  # noqa: F401
