"""Word vectors by skip-grams with negative samples; the pairs are made in NumPy beforehand."""

import argparse
import collections

import numpy as np
import tensorflow as tf
from tensorflow import keras

TEXT = """the king rules the land and the queen rules the land beside the king
the man walks the dog and the woman walks the cat while the dog sees the cat
a river runs by the town and the town sleeps by the river in the night""".split()


def vocabulary(words, most=100):
    counts = collections.Counter(words).most_common(most - 1)
    return {"<pad>": 0} | {word: n for n, (word, _) in enumerate(counts, start=1)}


def skipgrams(ids, window, negatives, size, rng):
    targets, contexts, labels = [], [], []
    weights = np.arange(1, size) ** -0.75
    weights /= weights.sum()
    for place, target in enumerate(ids):
        for other in range(max(0, place - window), min(len(ids), place + window + 1)):
            if other == place:
                continue
            drawn = rng.choice(np.arange(1, size), negatives, p=weights)
            targets.append(target)
            contexts.append([ids[other], *drawn])
            labels.append([1] + [0] * negatives)
    return np.array(targets, "int32"), np.array(contexts, "int32"), np.array(labels, "float32")


class Word2Vec(keras.Model):
    def __init__(self, words, width):
        super().__init__()
        self.target = keras.layers.Embedding(words, width, name="target")
        self.context = keras.layers.Embedding(words, width, name="context")

    def call(self, pair):
        target, context = pair
        if len(target.shape) == 2:
            target = tf.squeeze(target, axis=1)
        return tf.einsum("be,bce->bc", self.target(target), self.context(context))


def nearest(table, index, word, most=3):
    names = {n: name for name, n in index.items()}
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    scores = unit @ unit[index[word]]
    order = [n for n in np.argsort(-scores) if n not in (0, index[word])]
    return [(names[n], round(float(scores[n]), 2)) for n in order[:most] if n in names]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    index = vocabulary(TEXT)
    ids = [index[word] for word in TEXT if word in index]
    targets, contexts, labels = skipgrams(ids, 2, 4, len(index), rng)
    print(len(targets), "pairs of", len(index), "words")

    dataset = tf.data.Dataset.from_tensor_slices(((targets, contexts), labels))
    dataset = dataset.shuffle(len(targets)).repeat().batch(args.batch, drop_remainder=True)
    model = Word2Vec(len(index), args.width)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(dataset.prefetch(2), steps_per_epoch=args.steps)

    table = model.target.get_weights()[0]
    for word in ("king", "river"):
        print(word, nearest(table, index, word))


if __name__ == "__main__":
    main()
