"""Checks of a run's exported result, and of its one-line errors; in one process."""

import contextlib
import io
import json
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from huggingface_hub import ModelCard
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import pretrain
import records
import vocabulary

FOLDER = Path(sys.argv[1])
JOB = Path(pretrain.__file__).parent
TRAIN = ["--batch", "16", "--steps", "4", "--steps-per-call", "2", "--warmup-steps", "1"]


def run(*arguments: object) -> tuple[int, list[str], str]:
    """Run pretrain.py as a command; return its exit code, output lines and error text."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = pretrain.main([str(argument) for argument in arguments])
    return code, out.getvalue().splitlines(), errors.getvalue()


def refused(code: int, message: str, *arguments: object) -> None:
    actual_code, _, errors = run(*arguments)
    assert actual_code == code, (actual_code, errors)
    assert errors.startswith("error: ") and len(errors.splitlines()) == 1, errors
    assert message in errors, errors


# Invalid input fails early with one line.
empty = FOLDER / "empty"
empty.mkdir()
out = FOLDER / "out"
refused(2, "--batch 6 is not divisible by 4 replicas; try 4 or 8", "--output", out,
        "--batch", 6, "--replicas", 4)  # fmt: skip
refused(2, "--accumulation 3 does not divide the 16 sequences", "--output", out,
        "--batch", 16, "--accumulation", 3)  # fmt: skip
refused(2, f"no .txt files with text in {empty}", "--output", out, "--text", empty)
refused(2, f"no records in {empty}/records; create them first: python prepare.py records "
        f"--data {empty}", "--output", out, "--data", empty)  # fmt: skip

# Records of the template korean-wikipedia are used unchanged.
data = FOLDER / "data"
(data / "tokenizer").mkdir(parents=True)
(data / "text").mkdir()
texts = [list(vocabulary.read_lines(str(path))) for path in sorted((JOB / "sample").iterdir())]
(data / "text" / "text-00000.txt").write_text("\n\n".join(map("".join, texts)), "utf-8")
source = {"name": "kowiki 20260101", "license": "cc-by-sa-4.0"}
(data / "text" / "manifest.json").write_text(
    json.dumps({"sources": [source], "license": source["license"]})
)
trained = vocabulary.train_vocabulary(lambda: [line for text in texts for line in text], 600)
trained.save(str(data / "tokenizer" / "tokenizer.json"))
plan = records.Plan(sequence_length=32, duplication=2)
path = str(data / "text" / "text-00000.txt")
manifest = records.write([path], str(data / "records"), trained, plan, "key")
base = ["--data", data, "--output", out, *TRAIN]
refused(2, "fewer than --batch 100000", *base, "--batch", 100000)
refused(2, f"--only-export: no checkpoint in {out}/checkpoints", *base, "--only-export")

# A vocabulary that does not match the records is rejected.
tokenizer_file = data / "tokenizer" / "tokenizer.json"
text = tokenizer_file.read_text("utf-8")
other = Tokenizer.from_str(text)
other.add_tokens(["없는말"])
tokenizer_file.write_text(other.to_str(), "utf-8")
refused(2, f"the vocabulary in {data}/tokenizer", *base)
tokenizer_file.write_text(text, "utf-8")

# An excessive learning rate fails the run; NaN weights are never saved.
spoilt = ["--data", data, "--output", FOLDER / "nan", *TRAIN]
code, _, errors = run(*spoilt, "--checkpoint-steps", 1, "--learning-rate", "1e38", "--clip-norm",
                      "1e30")  # fmt: skip
assert code == 1, errors
assert errors.startswith("error: NaN loss during training: "), errors
assert "try a lower --learning-rate" in errors
checkpoints = FOLDER / "nan" / "checkpoints"
markers = sorted(path.name for path in checkpoints.glob("*.json")) if checkpoints.exists() else []
for name in markers:
    assert f"{checkpoints}/{name.removesuffix('.json')} is kept" in errors, (markers, errors)
    reader = tf.train.load_checkpoint(str(checkpoints / name.removesuffix(".json")))
    for variable, shape in reader.get_variable_to_shape_map().items():
        if shape and variable.startswith("model/"):
            assert np.isfinite(reader.get_tensor(variable)).all(), variable
assert markers or "there is no checkpoint yet" in errors, errors

# The exported result can be loaded.
code, lines, errors = run(*base)
assert code == 0, errors
model = out / "model"
assert lines[-1] == f"model: {model}, load it with from_pretrained of transformers"
from transformers import AutoTokenizer, TFAutoModelForMaskedLM, TFBertForPreTraining  # noqa: E402

trained = pretrain.KEEP_ALIVE[-1].network
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

# PyTorch's file has the same weights by PyTorch's names, with transposed kernels.
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
assert sum(array.size for array in weights.values()) == pretrain.KEEP_ALIVE[-1].parameters
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
for text_of_user in ("ㅋㅋ 漢字 Café", "아침에 일어나면 창문을 연다."):
    expected_ids = Tokenizer.from_str(text).encode(text_of_user, add_special_tokens=False).ids
    assert tokenizer(text_of_user, add_special_tokens=False)["input_ids"] == expected_ids

card = ModelCard.load(model / "README.md")
assert card.data.pipeline_tag == "fill-mask"
head = card.data.to_dict()
assert (head["license"], head["language"], head["mask_token"]) == ("cc-by-sa-4.0", "ko", "[MASK]")
rows = dict(
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in card.text.splitlines()
    if line.startswith("| ") and line.count("|") == 3
)
assert rows["text"] == "kowiki 20260101" and rows["pairs"] == "nsp", rows
assert rows["sequences"] == f"{manifest['counts']['sequences']:,}"
assert rows["steps"] == "4" and "held out mlm loss" in rows
assert "and so is the model" in card.text and "truncated to\n32 tokens" in card.text

# The evaluation in the log and the file matches a manual computation.
logged = json.loads((out / "evaluation.json").read_text())
(line,) = [line for line in lines if "held-out" in line]
assert line.startswith(f"step 4/4  held-out loss {logged['held_out_mlm_loss']:.4f}  "), line
assert logged["held_out_sequences"] == manifest["counts"]["held_out_sequences"]
from input_pipeline import held_out  # noqa: E402

loss = right = weight = 0.0
for batch in held_out(str(data / "records"), manifest, pretrain.KEEP_ALIVE[-1].options):
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
        for place, truth, weight_of in zip(places, truths, weights_of, strict=True):
            if weight_of:
                row_scores = scores[row, place].astype(np.float64)
                loss += (
                    np.log(np.exp(row_scores - row_scores.max()).sum())
                    + row_scores.max()
                    - row_scores[truth]
                )
                right += row_scores.argmax() == truth
                weight += 1
assert logged["held_out_predictions"] == weight
assert abs(logged["held_out_mlm_loss"] - loss / weight) < 1e-3
assert abs(logged["held_out_mlm_accuracy"] - right / weight) < 1e-3
assert abs(np.log(logged["held_out_perplexity"]) - loss / weight) < 1e-2

# A second run does nothing; an incomplete result is written again.
written = (model / "model.safetensors").stat().st_mtime_ns
code, lines, _ = run(*base)
assert code == 0
assert lines[-1] == "already trained to step 4; increase --steps to continue"
assert (model / "model.safetensors").stat().st_mtime_ns == written
(model / "training.json").unlink()
time.sleep(0.01)
code, lines, _ = run(*base)
assert code == 0
assert lines[-1].startswith("model: ")
assert (model / "model.safetensors").stat().st_mtime_ns > written
again = load_file(model / "model.safetensors")
assert all((again[name] == weights[name]).all() for name in weights)

# Each line is in TensorBoard once, although some runs of this output trained nothing.
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

events = EventAccumulator(str(out / "tensorboard"), size_guidance={"tensors": 0})
events.Reload()
assert [event.step for event in events.Tensors("loss")] == [1, 2, 4]

# The card of a text without a license, and without held-out text.
out = FOLDER / "plain"
code, lines, errors = run("--output", out, "--held-out", "0", "--vocabulary-size", "600", *TRAIN)
assert code == 0, errors
assert not any("held-out" in line for line in lines)
card = ModelCard.load(out / "model" / "README.md")
head = card.data.to_dict()
assert (head["license"], head["license_name"]) == ("other", "that-of-the-text")
assert "license of the text is unknown" in card.text and "text files in `sample`" in card.text

# A real out-of-memory error of TensorFlow is explained in one line.
from devices import explain_memory  # noqa: E402

try:
    tf.ones([1 << 22, 1 << 22])
except tf.errors.ResourceExhaustedError as error:
    explanation = explain_memory(str(error), batch=64, share=64, parts=1)
    assert explanation is not None and "--batch 32 or --acc" in str(explanation), explanation
else:
    raise AssertionError("64 TiB were allocated")
print("checked")
