"""Checkpoints on temporary disks, and secrets in sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target

CODES = ("TPU501", "TPU502")
VM = Target("vm", "2.18.0", 8)
HEAD = """import argparse
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from transformers import TFAutoModel

"""


@pytest.mark.parametrize(
    "source",
    [
        "c = tf.train.Checkpoint()\ntf.train.CheckpointManager(c, './ckpt', 3)  # TPU501 risk",
        "c = tf.train.Checkpoint()\n"
        "tf.train.CheckpointManager(c, directory='/tmp/ckpt', max_to_keep=3)  # TPU501 risk",
        "c = tf.train.Checkpoint()\nc.save('ckpt/a')  # TPU501 risk",
        "keras.callbacks.ModelCheckpoint('best.keras')  # TPU501 risk",
        "tf.keras.callbacks.ModelCheckpoint(filepath='a-{epoch}.h5')  # TPU501 risk",
        "tf.keras.callbacks.BackupAndRestore('backup')  # TPU501 risk",
        "m = tf.keras.Sequential([])\nm.save_weights('w.h5')  # TPU501 risk",
        "m = tf.keras.Sequential([])\nm.save('m.keras')  # TPU501 risk",
        "model = input()\nmodel.save('m.keras')  # TPU501 risk",
        "m = TFAutoModel.from_pretrained('a')\nm.save_pretrained('out')  # TPU501 risk",
        "tf.saved_model.save(1, 'out')  # TPU501 risk",
        "OUT = os.path.join(os.getcwd(), 'out')\n"
        "keras.callbacks.BackupAndRestore(OUT)  # TPU501 risk",
        "keras.callbacks.BackupAndRestore('gs://b/backup')",
        "keras.callbacks.BackupAndRestore(os.environ['TPUCTL_OUTPUT'] + '/backup')",
        "keras.callbacks.BackupAndRestore(os.environ.get('OUT', 'backup'))",
        "keras.callbacks.BackupAndRestore(input())",
        "p = argparse.ArgumentParser()\np.add_argument('--out', default='out')\n"
        "keras.callbacks.BackupAndRestore(p.parse_args().out)",
        "keras.callbacks.BackupAndRestore('/mnt/disks/data/backup')",
        "keras.callbacks.BackupAndRestore('/gcs/b/backup')",
        "keras.callbacks.BackupAndRestore('gs://b' if input() else 'backup')",
        "m = tf.keras.Sequential([])\nm.save(tempfile.mkdtemp())",
        "np.save('a.npy', np.ones(3))",
        "from PIL import Image\nimage = Image.open('a.png')\nimage.save('b.png')",
        "keras.callbacks.TensorBoard('logs')",
        "m = tf.keras.Sequential([])\nm.save('m.keras')\n"
        "tf.io.gfile.copy('m.keras', 'gs://b/m.keras')",
        "m = tf.keras.Sequential([])\nm.save('m.keras')\nos.system('gsutil cp m.keras gs://b/')",
        "m = TFAutoModel.from_pretrained('a')\nm.save_pretrained('out')\nm.push_to_hub('me/out')",
    ],
)
def test_checkpoints_on_local_disks(tmp_path: Path, source: str) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(HEAD + source, VM)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("tf.keras.callbacks.BackupAndRestore('backup')", "where a TPU node cannot write"),
        ("tf.keras.callbacks.ModelCheckpoint('best.h5')", "which is lost with the machine"),
    ],
)
def test_node_cannot_write_to_script_machine(tmp_path: Path, source: str, reason: str) -> None:
    target = Target("node", "2.12.1", 8)
    (finding,) = RuleChecker(tmp_path, *CODES).findings(HEAD + source, target, {})
    assert finding.message.endswith(reason)


# Concatenated here, since repository scanners mistake the complete values for secrets.
GOOGLE = "AI" + "zaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"
AMAZON = "AK" + "IAJ4QK2ZP6WTR3YB7N"
HUGGING_FACE = "hf" + "_kTqWzRmYpXcVbNsLdJgHfPaQeUiOtB"
GITHUB = "gh" + "p_16C7e42F292c6912E7710c838347Ae178B4a"
HEXADECIMAL = "3f1c9a0de4b72c6d5e8f90a1b2c3d4e5" + "f6a7b8c9"
BEGIN = "-----BEGIN " + "PRIVATE KEY-----"


@pytest.mark.parametrize(
    "source",
    [
        f"A = '{GOOGLE}'  # TPU502 risk",
        f"A = '{AMAZON}'  # TPU502 risk",
        f"login(token='{HUGGING_FACE}')  # TPU502 risk",
        f"A = '{GITHUB}'  # TPU502 risk",
        f"import wandb\nwandb.login(key='{HEXADECIMAL}')  # TPU502 risk",
        f"os.environ['WANDB_API_KEY'] = '{HEXADECIMAL}'  # TPU502 risk",
        f"A = '{BEGIN}\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC'  # TPU502 risk",
        "A = 'postgresql://me:Vq7mZk2pXw@db.internal/a'  # TPU502 risk",
        "password = 'hunter2!'  # TPU502 risk",
        "connect(password='Vq7mZk2pXw')  # TPU502 risk",
        "A = {'db_password': 'tr0ub4dor&3'}  # TPU502 risk",
        "class A:\n    api_key: str = 'f81D4fae-7dec-11d0Z'  # TPU502 risk",
        "os.environ['SERVICE_TOKEN'] = 'q8Zr2LmX0pVt6KbN'  # TPU502 risk",
        "A = 'AKIAIOSFODNN7EXAMPLE'",
        "A = 'hf_" + "x" * 34 + "'",
        "password = 'password'",
        "password = 'changeme1'",
        "password = ''",
        "password = os.environ['PASSWORD']",
        "api_key = 'YOUR_API_KEY'",
        "api_key = '<your key here>'",
        "token = '[CLS]'",
        "eos_token = '<|endoftext|>'",
        "tokenizer = 'bert-base-uncased'",
        "token = 'bert-base-multilingual-cased'",
        "secret = 'projects/p/secrets/hf/versions/latest'",
        "A = 'postgresql://user:password@host/a'",
        "A = f'postgresql://user:{input()}@host/a'",
        "A = 'https://host/path?x=1@2'",
        f"CHECKSUM = '{HEXADECIMAL}'",
        f"if input().startswith('{BEGIN}'):\n    raise SystemExit",
        "pad_token_id = 'x9Y8z7W6v5U4t3S2'",
    ],
)
def test_secrets_in_sources(tmp_path: Path, source: str) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(HEAD + source, VM)


def test_secret_is_reported_without_its_value(tmp_path: Path) -> None:
    source = f"{HEAD}API_KEY = '{GOOGLE}'"
    (finding,) = RuleChecker(tmp_path, *CODES).findings(source, VM, {})
    assert finding.message == "a Google API key is in the source code"
    assert GOOGLE not in finding.message + finding.hint
