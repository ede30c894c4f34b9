"""Steps that cannot be compiled, each caught, and an exception at the end."""

import saving  # one of the shim's modules has this name, too
import tensorflow as tf

strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver(""))
weight = tf.Variable(2.0)


def attempt(step_fn):
    @tf.function
    def train_step(x):
        return strategy.run(step_fn, args=(x,))

    try:
        train_step(tf.ones([4]))
    except Exception as error:
        print(step_fn.__name__, type(error).__name__)


def with_python(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * weight)
    tf.numpy_function(saving.save, [loss], [])
    weight.assign_sub(tape.gradient(loss, weight))
    return loss


def with_while(x):
    with tf.GradientTape() as tape:
        y = x * weight
        while tf.reduce_sum(y) < 100.0:
            y = y * 2.0
        loss = tf.reduce_sum(y)
    gradient = tape.gradient(loss, weight)
    weight.assign_sub(gradient)
    return loss


@tf.autograph.experimental.do_not_convert
def with_if(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * weight)
        if loss > 1:
            loss = loss * 2.0
    weight.assign_sub(tape.gradient(loss, weight))
    return loss


def with_value(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * weight)
    print(loss.numpy())
    weight.assign_sub(tape.gradient(loss, weight))
    return loss


for step_fn in (with_python, with_while, with_if, with_value):
    attempt(step_fn)

with strategy.scope():
    unbuilt = tf.keras.Sequential([tf.keras.layers.Dense(1)])


def with_unbuilt_model(x):
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(unbuilt(x[:, None]))
    print(total.numpy())  # in the step of an unbuilt model
    return tape.gradient(total, unbuilt.trainable_variables)


def with_arguments(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * weight)
    weight.assign_sub(tape.gradient(loss, weight))
    return loss


for step_fn in (with_unbuilt_model, with_arguments):
    attempt(step_fn)
    try:
        strategy.run(step_fn, args=(tf.ones([4]),))
    except Exception as error:
        print("eagerly", step_fn.__name__, type(error).__name__)


class Gate(tf.keras.layers.Layer):
    def call(self, x):
        if tf.reduce_sum(x) > 0:  # in the layer
            return x
        return -x


class Gated(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.gate, self.dense = Gate(), tf.keras.layers.Dense(1)

    def call(self, x):
        return self.dense(self.gate(x))


x, y = tf.ones([64, 4]), tf.ones([64, 1])
gated = Gated()
gated.compile("sgd", "mse")
try:
    gated.fit(x, y, verbose=0)
except Exception as error:
    print("fit", type(error).__name__)
eager = tf.keras.Sequential([tf.keras.layers.Dense(1)])
eager.compile("sgd", "mse", run_eagerly=True)
eager.fit(x, y, verbose=0)
raise LookupError("at the end")
