"""Steps with operations that XLA does not have: in a branch, a loop, a function, of a string."""

import tensorflow as tf

strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver(""))
weight = tf.Variable(2.0)


def attempt(step_fn, *arguments):
    @tf.function
    def train_step(*arguments):
        return strategy.run(step_fn, args=arguments)

    try:
        train_step(*arguments)
    except Exception as error:
        print(step_fn.__name__, type(error).__name__)


def update(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * weight)
    weight.assign_sub(tape.gradient(loss, weight))
    return loss


def with_branch(x):
    loss = update(x)
    if loss > 1.0:
        loss += tf.cast(tf.strings.length(tf.strings.as_string(loss)), tf.float32)  # in a branch
    return loss


def with_loop(x):
    loss = update(x)
    for _ in tf.range(3):
        loss += tf.cast(tf.strings.length(tf.strings.as_string(loss)), tf.float32)  # in a loop
    return loss


@tf.function
def inner(loss):
    return loss + tf.cast(tf.strings.length(tf.strings.as_string(loss)), tf.float32)  # in another


def with_function(x):
    return inner(update(x))


def with_text(x, text):
    return update(x) + tf.cast(tf.strings.length(text), tf.float32)  # of an argument


for step_fn in (with_branch, with_loop, with_function):
    attempt(step_fn, tf.ones([4]))
attempt(with_text, tf.ones([4]), tf.constant("a"))
