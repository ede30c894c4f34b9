"""Checks of a run's result, exported, loaded and tried, and of each error's line; one process."""

import contextlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from huggingface_hub import ModelCard
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import pretrain

FOLDER = Path(sys.argv[1])
JOB = Path(pretrain.__file__).parent
SMALL = ["--sequence-length", "32", "--duplication", "2"]
TRAIN = ["--batch", "16", "--steps", "4", "--steps-per-call", "2", "--warmup-steps", "1"]


def run(*arguments: object) -> tuple[int, list[str], str]:
    """Run pretrain.py as a command; return its exit code and what it said to whom."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = pretrain.main([str(argument) for argument in arguments])
    return code, out.getvalue().splitlines(), errors.getvalue()


def refused(code: int, said: str, *arguments: object) -> None:
    found, _, errors = run(*arguments)
    assert found == code, (found, errors)
    assert errors.startswith("error: ") and len(errors.splitlines()) == 1, errors
    assert said in errors, errors


# What is wrong with the input is one line, before any work.
empty = FOLDER / "empty"
empty.mkdir()
out = FOLDER / "out"
refused(2, "--batch 6 cannot be shared equally by 4 replicas; try 4 or 8", "--output", out,
        "--batch", 6, "--replicas", 4)  # fmt: skip
refused(2, "--accumulation 3 does not divide the 16 sequences", "--output", out,
        "--batch", 16, "--accumulation", 3)  # fmt: skip
refused(2, f"no .txt files in {empty}", "--output", out, "--text", empty)
refused(2, f"no records in {empty}/records; make them first: python prepare.py records "
        f"--data {empty}", "--output", out, "--data", empty)  # fmt: skip

# Data that prepare.py made is taken as it is.
data = FOLDER / "data"
for command in (
    ["extract", JOB / "sample"],
    ["tokenizer", "--vocabulary-size", "600"],
    ["records", *SMALL],
):
    call = [sys.executable, JOB / "prepare.py", *command, "--data", data]
    subprocess.run(call, check=True, capture_output=True)
given = ["--data", data, "--output", out, *TRAIN]
refused(2, "fewer than --batch 100000", *given, "--batch", 100000)
refused(2, f"--only-export: no checkpoint in {out}/checkpoints", *given, "--only-export")

# Another vocabulary than the records' is refused, and the data is as it was afterwards.
mine = data / "tokenizer" / "tokenizer.json"
text = mine.read_text("utf-8")
other = Tokenizer.from_str(text)
other.add_tokens(["없는말"])
mine.write_text(other.to_str(), "utf-8")
refused(2, f"the vocabulary in {data}/tokenizer", *given)
mine.write_text(text, "utf-8")

# A learning rate that no weight survives ends the run; nothing of it is saved.
spoilt = ["--data", data, "--output", FOLDER / "nan", *TRAIN]
code, _, errors = run(*spoilt, "--checkpoint-steps", 1, "--learning-rate", "1e38", "--clip-norm",
                      "1e30")  # fmt: skip
assert code == 1, errors
assert errors.startswith("error: NaN loss during training: "), errors
assert "try a lower --learning-rate" in errors
checkpoints = FOLDER / "nan" / "checkpoints"
kept = sorted(path.name for path in checkpoints.glob("*.json")) if checkpoints.exists() else []
for name in kept:
    assert f"{checkpoints}/{name.removesuffix('.json')} is kept" in errors, (kept, errors)
    reader = tf.train.load_checkpoint(str(checkpoints / name.removesuffix(".json")))
    for variable, shape in reader.get_variable_to_shape_map().items():
        if shape and variable.startswith("model/"):
            assert np.isfinite(reader.get_tensor(variable)).all(), variable
assert kept or "there is no checkpoint yet" in errors, errors

# A run's result, as anybody loads it.
code, said, errors = run(*given)
assert code == 0, errors
model = out / "model"
assert said[-1] == f"model: {model}, for transformers' from_pretrained"
from transformers import AutoTokenizer, TFAutoModelForMaskedLM, TFBertForPreTraining  # noqa: E402

trained = pretrain.KEPT[-1].network
ids = tf.constant([[2, 40, 4, 60, 70, 3, 80, 3], [2, 9, 4, 11, 3, 0, 0, 0]])
inputs = {
    "input_ids": ids,
    "attention_mask": tf.cast(ids > 0, tf.int32),
    "token_type_ids": tf.constant([[0, 0, 0, 0, 0, 0, 1, 1], [0] * 8]),
}
expected = trained(inputs)
loaded = TFBertForPreTraining.from_pretrained(model, use_safetensors=False)(inputs)
for name in ("prediction_logits", "seq_relationship_logits"):
    np.testing.assert_array_equal(loaded[name], expected[name], name)
alone = TFAutoModelForMaskedLM.from_pretrained(model, use_safetensors=False)
np.testing.assert_allclose(alone(inputs).logits, expected.prediction_logits, atol=1e-5)

# PyTorch's file: the same numbers by PyTorch's names, its kernels turned.
weights = load_file(model / "model.safetensors")
bert = trained.bert
np.testing.assert_array_equal(
    weights["bert.embeddings.word_embeddings.weight"], bert.embeddings.weight.numpy()
)
query = bert.encoder.layer[0].attention.self_attention.query
np.testing.assert_array_equal(
    weights["bert.encoder.layer.0.attention.self.query.weight"], query.kernel.numpy().T
)
layers = {name.split(".")[3] for name in weights if name.startswith("bert.encoder.layer.")}
assert layers == {"0", "1"}
assert {name.split(".")[0] for name in weights} == {"bert", "cls"}
assert sum(array.size for array in weights.values()) == pretrain.KEPT[-1].parameters
config = json.loads((model / "config.json").read_text())
assert (config["model_type"], config["architectures"]) == ("bert", ["BertForPreTraining"])

tokenizer = AutoTokenizer.from_pretrained(model)
sentence = "아침에 창문을 열면 새소리가 들린다."
assert tokenizer(sentence)["input_ids"][1:-1] == Tokenizer.from_str(text).encode(
    sentence, add_special_tokens=False
).ids  # fmt: skip
pair = tokenizer("창문", "문")
assert tokenizer.convert_ids_to_tokens(pair["input_ids"])[0] == "[CLS]"
ends = [n for n, piece in enumerate(pair["input_ids"]) if piece == tokenizer.sep_token_id]
assert ends[1] == len(pair["input_ids"]) - 1
assert pair["token_type_ids"] == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
assert (tokenizer.mask_token, tokenizer.model_max_length) == ("[MASK]", 32)

card = ModelCard.load(model / "README.md")
assert card.data.pipeline_tag == "fill-mask"
assert card.data.to_dict()["license"] == "other"
shown = [line.removeprefix("example: ") for line in said if line.startswith("example: ")]
assert shown, "no sentence was tried"
for line in shown:
    assert line in card.text
    before, hidden, guesses = line.split(" | ")
    assert "____" in before and hidden.startswith("hidden: "), line
    assert len(guesses.removeprefix("guesses: ").split("%, ")) == 3, line

# The evaluation: as the log, the file and a computation by hand have it.
logged = next(json.loads(line) for line in said if "held_out_mlm_loss" in line)
assert logged == json.loads((out / "evaluation.json").read_text())
manifest = json.loads((data / "records" / "manifest.json").read_text())
assert logged["held_out_sequences"] == sum(item["sequences"] for item in manifest["held_out"])
from training.reading import held_out  # noqa: E402

loss = right = weight = 0.0
for batch in held_out(str(data / "records"), manifest, 3):
    scores = trained(
        {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["input_mask"],
            "token_type_ids": batch["segment_ids"],
        }
    ).prediction_logits.numpy()
    for row, (places, truths, weights_of) in enumerate(
        zip(
            batch["masked_lm_positions"].numpy(),
            batch["masked_lm_ids"].numpy(),
            batch["masked_lm_weights"].numpy(),
            strict=True,
        )
    ):
        for place, truth, one in zip(places, truths, weights_of, strict=True):
            if one:
                found = scores[row, place].astype(np.float64)
                loss += np.log(np.exp(found - found.max()).sum()) + found.max() - found[truth]
                right += found.argmax() == truth
                weight += 1
assert logged["held_out_predictions"] == weight
assert abs(logged["held_out_mlm_loss"] - loss / weight) < 1e-3
assert abs(logged["held_out_mlm_accuracy"] - right / weight) < 1e-3
assert abs(np.log(logged["held_out_perplexity"]) - loss / weight) < 1e-2

# A second run has nothing to do; a result that is not whole is written again.
written = (model / "model.safetensors").stat().st_mtime_ns
code, said, _ = run(*given)
assert code == 0
assert said[-1] == "already trained to step 4; more --steps would go on"
assert (model / "model.safetensors").stat().st_mtime_ns == written
(model / "training.json").unlink()
time.sleep(0.01)
code, said, _ = run(*given)
assert code == 0
assert said[-1].startswith("model: ")
assert (model / "model.safetensors").stat().st_mtime_ns > written
again = load_file(model / "model.safetensors")
assert all((again[name] == weights[name]).all() for name in weights)

# Memory that is not there: a real error of TensorFlow's, told in one line.
from training import memory  # noqa: E402

try:
    tf.ones([1 << 22, 1 << 22])
except tf.errors.ResourceExhaustedError as error:
    told = memory.explain(str(error), batch=64, replicas=1, parameters=1000)
    assert told is not None and "--batch 32 is worth a try" in str(told), told
else:
    raise AssertionError("64 TiB were there")
print("checked")
