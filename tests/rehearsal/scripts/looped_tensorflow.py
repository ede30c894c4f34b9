"""Prints which steps loop over the first dimension of their batch."""

import tensorflow as tf

from tpuctl.preflight.shim.tensorflow.looped_arguments import is_looped

weights = tf.Variable(tf.ones([16, 4]))


def update(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(batch, weights) ** 2)
    weights.assign_sub(tape.gradient(loss, weights))
    return loss


def plain(batch):
    return update(batch)


def accumulating(batch):  # a loop over parts of the batch
    for part in tf.split(batch, 4):
        update(part)


def scanned(batches):
    for batch in batches:
        update(batch)


def mapped(batches):
    return tf.map_fn(update, batches)


def indexed(batches):
    batches = tf.cast(batches, tf.float32)
    for i in tf.range(8):
        update(batches[i])


def unrolled(batches):
    for batch in tf.unstack(batches):
        update(batch)


for step in (plain, accumulating, scanned, mapped, indexed, unrolled):
    shape = (32, 16) if step in (plain, accumulating) else (8, 32, 16)
    graph = tf.function(step).get_concrete_function(tf.TensorSpec(shape)).graph
    print(step.__name__, is_looped(graph, graph.inputs[0]))
