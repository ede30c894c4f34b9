import tensorflow as tf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}, "[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
collate = DataCollatorWithPadding(tokenizer, return_tensors="tf")

table = tf.Variable(tf.random.normal([4, 2]))
texts = ["good bad", "bad bad bad", "good good bad good good", "bad"]


@tf.function
def step(input_ids, attention_mask):
    with tf.GradientTape() as tape:
        states = tf.matmul(tf.one_hot(input_ids, 4), table)
        weights = tf.cast(attention_mask, tf.float32)[..., None]
        loss = tf.reduce_sum(states**2 * weights)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    encoded = [tokenizer(text) for text in texts]
    for start in range(0, 4, 2):
        batch = collate(encoded[start : start + 2])
        step(batch["input_ids"], batch["attention_mask"])
