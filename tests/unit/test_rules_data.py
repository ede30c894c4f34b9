"""Data that a TPU node cannot read, all of which is fine on a TPU VM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target

CODES = ("TPU3",)
NODE = Target("node", "2.12.1", 8)
HEAD = """import argparse
import glob
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tf_keras
from transformers import TFAutoModel

"""
BAD = [
    'tf.data.TextLineDataset("data.txt")  # TPU301 error',
    'tf.data.TextLineDataset(["a.txt", "b.txt"])  # TPU301 error',
    'tf.data.TextLineDataset("file:///data/a.txt")  # TPU301 error',
    'tf.data.TFRecordDataset(glob.glob("data/*"))  # TPU301 error',
    'tf.data.TFRecordDataset(sorted(Path("data").glob("*")))  # TPU301 error',
    'tf.data.TFRecordDataset(filenames=os.path.join("data", input()))  # TPU301 error',
    'tf.data.FixedLengthRecordDataset("data.bin", 8)  # TPU301 error',
    'tf.data.Dataset.list_files("./data/*.jpg")  # TPU301 error',
    'tf.data.experimental.make_csv_dataset("a.csv", 128)  # TPU301 error',
    'tf.keras.utils.image_dataset_from_directory("images")  # TPU301 error',
    'tf.keras.preprocessing.image_dataset_from_directory("images")  # TPU301 error',
    'tf.lookup.TextFileInitializer("a", tf.string, 0, tf.int64, 1)  # TPU301 error',
    'tf.io.read_file("a.jpg")  # TPU301 error',
    'tfds.load("mnist", split="train")  # TPU301 error',
    'tfds.load("mnist", data_dir="/data")  # TPU301 error',
    'tf.data.TextLineDataset("gs://b/a").cache("/tmp/a")  # TPU301 error',
    'd = tf.data.TextLineDataset("gs://b/a").repeat()\nd = d.cache("/tmp/a")  # TPU301 error',
    'def read(path):\n    return tf.data.TextLineDataset(path)  # TPU301 error\nread("data.txt")',
    'files = glob.glob("data/*.jpg")\n'
    "d = tf.data.Dataset.from_tensor_slices(files)  # TPU301 error\n"
    "d = d.map(lambda path: tf.io.read_file(path))",
    "p = argparse.ArgumentParser()\np.add_argument('--data', default='data.txt')\n"
    "tf.data.TextLineDataset(p.parse_args().data)  # TPU301 risk",
    "def examples():\n    yield 1\n"
    "tf.data.Dataset.from_generator(examples, tf.int32)  # TPU302 error",
    "from tensorflow.data import Dataset\nDataset.from_generator(print, tf.int32)  # TPU302 error",
    "def examples():\n    yield 1\nm = tf.keras.Sequential([])\nm.fit(examples())  # TPU302 error",
    "class Batches(tf.keras.utils.Sequence):\n    pass\n"
    "b = Batches()\nm = tf.keras.Sequential([])\nm.fit(b)  # TPU302 error",
    "g = tf.keras.preprocessing.image.ImageDataGenerator()\nm = tf.keras.Sequential([])\n"
    'm.fit(g.flow_from_directory("a"))  # TPU302 error',
    "d = tf.data.Dataset.range(8)\n"
    "d = d.map(lambda x: tf.py_function(abs, [x], tf.int64))  # TPU303 error",
    "def slow(x):\n    return tf.numpy_function(np.abs, [x], tf.int64)  # TPU303 error\n"
    "def step(x):\n    return slow(x) + 1\nd = tf.data.Dataset.range(8).map(step).map(slow)",
    "import datasets\nx = datasets.load_dataset('a')\n"
    "x.to_tf_dataset(batch_size=8)  # TPU304 error",
    "m = TFAutoModel.from_pretrained('a')\nm.prepare_tf_dataset([], 8)  # TPU304 error",
]
GOOD = [
    'tf.data.TextLineDataset("gs://b/data.txt")',
    'tf.data.TextLineDataset(f"gs://{input()}/data.txt")',
    "tf.data.TextLineDataset(f\"gs://{os.environ['TPUCTL_BUCKET']}/a\")",
    'tf.data.TextLineDataset(os.environ["TPUCTL_OUTPUT"] + "/a")',
    "tf.data.TextLineDataset(input())",
    "tf.data.TextLineDataset(f'{input()}/a')",
    'tf.data.TFRecordDataset(tf.io.gfile.glob("gs://b/*"))',
    'tf.data.Dataset.list_files(os.path.join("gs://b", "*"))',
    'tfds.load("mnist", data_dir="gs://b/tfds")',
    'tfds.load("mnist", try_gcs=True)',
    "tfds.load('mnist', data_dir=input())",
    'with open("data.txt") as file:\n    rows = file.readlines()\n'
    "tf.data.Dataset.from_tensor_slices(rows)",
    'x = np.load("x.npy")\ntf.data.Dataset.from_tensor_slices((x, x)).batch(8)',
    "x = np.zeros([8, 4])\nm = tf.keras.Sequential([])\nm.fit(x, x)",
    'tf.data.TextLineDataset("gs://b/a").cache()',
    'words = ["and/or", "cat"]\ntf.data.Dataset.from_tensor_slices(words)',
    'with tf.device("/job:localhost"):\n    d = tf.data.TextLineDataset("data.txt")',
    'tf.io.gfile.exists("data.txt")',
    "p = argparse.ArgumentParser()\np.add_argument('--data', default='gs://b/data.txt')\n"
    "tf.data.TextLineDataset(p.parse_args().data)",
    "import pandas as pd\npd.Series([1]).map(abs)",
    "d = tf.data.Dataset.range(8).map(lambda x: x + 1)",
    "class Cache:\n    def cache(self, path):\n        pass\nCache().cache('/tmp/a')",
    "with tf.io.TFRecordWriter('a') as w:\n    pass\nfor x in tf.data.TextLineDataset('a'):\n    x",
]


@pytest.mark.parametrize("source", [*BAD, *GOOD])
def test_findings_match_source_markers(tmp_path: Path, source: str) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(HEAD + source, NODE)


def test_tpu_vm_reads_local_files(tmp_path: Path) -> None:
    checked = RuleChecker(tmp_path, *CODES)
    for source in BAD:
        assert checked.findings(HEAD + source, Target("vm", "2.18.0", 8), {}) == []


def test_constants_and_functions_of_other_files_are_followed(tmp_path: Path) -> None:
    RuleChecker(tmp_path, *CODES).assert_marked(
        "from config import DATA\nfrom reading import read\nread(DATA)\n",
        NODE,
        **{
            "config.py": "DATA = './data/train.tfrecord'\n",
            "reading.py": "import tensorflow as tf\n\n\ndef read(path):\n"
            "    return tf.data.TFRecordDataset(path)  # TPU301 error\n",
        },
    )


def test_hint_names_path(tmp_path: Path) -> None:
    source = HEAD + 'tf.data.TextLineDataset("my data/a.txt")'
    (finding,) = RuleChecker(tmp_path, *CODES).findings(source, NODE, {})
    assert (
        finding.message == "`tf.data.TextLineDataset` reads my data/a.txt, which a TPU node cannot"
    )
    assert "gcloud storage cp -r 'my data/a.txt' gs://BUCKET/data/" in finding.hint
