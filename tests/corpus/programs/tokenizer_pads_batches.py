import tensorflow as tf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}, "[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
table = tf.Variable(tf.random.normal([4, 2]))


def batches(texts, size=2):
    for start in range(0, len(texts), size):
        yield tokenizer(texts[start : start + size], padding=True, return_tensors="tf")


@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(tf.one_hot(ids, 4), table) ** 2)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    for batch in batches(["good bad", "bad bad bad", "good good bad good good", "bad"]):
        step(batch["input_ids"])
