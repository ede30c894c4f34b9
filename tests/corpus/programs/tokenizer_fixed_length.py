import tensorflow as tf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MAX_LENGTH = 12
words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}, "[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
table = tf.Variable(tf.random.normal([4, 2]))


def encode(texts):
    return tokenizer(
        texts,
        padding="max_length",
        truncation=True,
        max_length=MAX_LENGTH,
        return_tensors="tf",
    )


@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(tf.one_hot(ids, 4), table) ** 2)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    texts = ["good bad", "bad bad bad", "good good bad good good", "bad"]
    for start in range(0, 4, 2):
        step(encode(texts[start : start + 2])["input_ids"])
