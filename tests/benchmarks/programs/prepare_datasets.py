"""Hugging Face's way from text to sequences: `datasets.map`, batched, in as many processes.

Arguments: text, tokenizer, folder, a plan's fields as JSON. Sentences are put together by the
template's own rule, so that the sequences are the same. The last line printed is JSON.
"""

import json
import os
import random
import shutil
import sys
import time
from functools import partial
from itertools import accumulate
from pathlib import Path

from records import Plan, examples


def sequences(batch, tokenizer, plan):
    rows = {"input_ids": [], "attention_mask": []}
    for document in batch["text"]:
        encoded = tokenizer(document.split("\n"), add_special_tokens=False)["input_ids"]
        tokens = [token for sentence in encoded for token in sentence]
        borders = [0, *accumulate(map(len, encoded))]
        for example in examples([borders], plan, random.Random(0)):
            row = tokenizer.build_inputs_with_special_tokens(
                tokens[example.first : example.first_end]
            )
            padding = plan.sequence_length - len(row)
            rows["attention_mask"].append([1] * len(row) + [0] * padding)
            rows["input_ids"].append(row + [tokenizer.pad_token_id] * padding)
    return rows


if __name__ == "__main__":
    began = time.perf_counter()  # imports count: the other program imports TensorFlow, too
    import datasets
    from transformers import BertTokenizerFast

    text, tokenizer, folder, more = sys.argv[1:]
    datasets.disable_progress_bars()
    shutil.rmtree(folder, ignore_errors=True)
    documents = datasets.load_dataset(
        "text",
        data_files=sorted(map(str, Path(text).iterdir())),
        sample_by="paragraph",
        cache_dir=folder,
        split="train",
    )
    work = partial(
        sequences,
        tokenizer=BertTokenizerFast.from_pretrained(tokenizer),
        plan=Plan(**json.loads(more)),
    )
    processes = len(os.sched_getaffinity(0))
    mapped = documents.map(work, batched=True, num_proc=processes, remove_columns=["text"])
    seconds = time.perf_counter() - began
    lengths = (sum(mask) for batch in mapped.iter(1000) for mask in batch["attention_mask"])
    print(json.dumps({"seconds": seconds, "sequences": len(mapped), "tokens": sum(lengths)}))
