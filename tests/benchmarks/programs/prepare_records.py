"""The template's own way from text to records. Arguments: text, tokenizer, folder, more.

`more` is a plan's fields as JSON. The last line printed is JSON: seconds and counts.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

from tokenizers import Tokenizer

import records

if __name__ == "__main__":
    began = time.perf_counter()
    text, tokenizer, folder, more = sys.argv[1:]
    paths = sorted(map(str, Path(text).iterdir()))
    plan = records.Plan(**json.loads(more))
    shutil.rmtree(folder, ignore_errors=True)
    trained = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    processes = len(os.sched_getaffinity(0))
    manifest = records.write(paths, folder, trained, plan, "key", processes)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, **manifest["counts"]}))
