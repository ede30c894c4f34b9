"""A small network learns from a large one: a model that holds both, with its own train_step."""

import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--temperature", type=float, default=5.0)
parser.add_argument("--alpha", type=float, default=0.1)
args = parser.parse_args()


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student = student
        self.teacher = teacher
        self.teacher.trainable = False

    def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha, temperature):
        super().compile(optimizer=optimizer, loss=student_loss, metrics=metrics)
        self.distillation_loss = distillation_loss
        self.alpha = alpha
        self.temperature = temperature

    def call(self, x, training=False):
        return self.student(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        hard = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        if not training or self.alpha == 1.0:
            return hard
        guess = self.teacher(x, training=False)
        soft = self.distillation_loss(
            tf.nn.softmax(guess / self.temperature, axis=1),
            tf.nn.softmax(y_pred / self.temperature, axis=1),
        )
        return self.alpha * hard + (1 - self.alpha) * soft * self.temperature**2

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=logits, training=True)
        variables = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, logits)
        return {metric.name: metric.result() for metric in self.metrics}


def network(width, depth, name):
    stack = [keras.Input((28, 28, 1)), keras.layers.Flatten()]
    stack += [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([*stack, keras.layers.Dense(10)], name=name)


def main():
    rng = np.random.default_rng(0)
    x = rng.random((256, 28, 28, 1), dtype="float32")
    y = rng.integers(0, 10, 256)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256).repeat()
    dataset = dataset.batch(args.batch, drop_remainder=True)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    teacher = network(128, 2, "teacher")
    teacher.compile("adam", entropy, metrics=[keras.metrics.SparseCategoricalAccuracy()])
    teacher.fit(dataset, steps_per_epoch=args.steps, epochs=1)

    student = network(16, 1, "student")
    distiller = Distiller(student, teacher)
    distiller.compile(
        optimizer=keras.optimizers.Adam(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
        student_loss=entropy,
        distillation_loss=keras.losses.KLDivergence(),
        alpha=args.alpha,
        temperature=args.temperature,
    )
    distiller.fit(dataset, steps_per_epoch=args.steps, epochs=1)
    before = np.concatenate([weight.ravel() for weight in teacher.get_weights()])
    print("the teacher has", before.size, "weights, the student", student.count_params())


if __name__ == "__main__":
    main()
