"""The bundled job's own way from text to records. Arguments: text, tokenizer, folder, more.

`more` is a plan's fields as JSON. The last line printed is JSON: seconds and counts.
"""

import json
import shutil
import sys
import time

from tokenizers import Tokenizer

from corpus import records
from corpus.workers import processor_count

if __name__ == "__main__":
    text, tokenizer, folder, more = sys.argv[1:]
    plan = records.RecordsPlan(**json.loads(more))
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    manifest = records.write(
        [text],
        Tokenizer.from_file(f"{tokenizer}/tokenizer.json"),
        plan,
        folder,
        "key",
        processor_count(),
    )
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, **manifest["counts"]}))
