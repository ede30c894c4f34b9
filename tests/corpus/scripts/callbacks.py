"""Callbacks of one's own beside Keras's: rates, samples, a stop by the clock, backups in the bucket."""

import argparse
import os
import time

import keras
import numpy as np
import tensorflow as tf


class LearningRates(keras.callbacks.Callback):
    """Halves the rate when the loss has not improved."""

    def __init__(self, patience=2):
        super().__init__()
        self.patience = patience
        self.best = np.inf
        self.waited = 0

    def on_epoch_end(self, epoch, logs=None):
        loss = (logs or {}).get("loss")
        if loss is None:
            return
        if loss < self.best:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            rate = float(self.model.optimizer.learning_rate)
            self.model.optimizer.learning_rate = rate * 0.5
            print(f"epoch {epoch}: rate {rate:g} -> {rate * 0.5:g}")


class Deadline(keras.callbacks.Callback):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_train_begin(self, logs=None):
        self.began = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        if time.monotonic() - self.began > self.seconds:
            self.model.stop_training = True
            print(f"stopped at batch {batch}")


class Samples(keras.callbacks.Callback):
    def __init__(self, rows, every=1):
        super().__init__()
        self.rows, self.every = rows, every

    def on_epoch_end(self, epoch, logs=None):
        if epoch % self.every:
            return
        for row, guess in zip(self.rows, self.model.predict(self.rows, verbose=0)):
            if guess.max() > 0.9:
                print(f"{row[:2].round(2)} is surely {int(guess.argmax())}")


class Rates(keras.callbacks.Callback):
    """Examples a second, by epoch."""

    def __init__(self, batch):
        super().__init__()
        self.batch, self.count = batch, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.count, self.began = 0, time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.count += self.batch

    def on_epoch_end(self, epoch, logs=None):
        passed = max(time.perf_counter() - self.began, 1e-6)
        print(f"epoch {epoch}: {self.count / passed:,.0f} examples/s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    output = os.environ.get("TPUCTL_OUTPUT", "")

    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 8)).astype("float32")
    y = (x[:, 0] > x[:, 1]).astype("int32")
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256).repeat()
    train = train.batch(args.batch, drop_remainder=True)

    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    callbacks = [
        LearningRates(),
        Deadline(600),
        Samples(x[:4]),
        Rates(args.batch),
        keras.callbacks.EarlyStopping("loss", patience=5),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_train_end=lambda logs: print("done:", sorted(logs or {}))),
    ]
    if output:
        callbacks.append(keras.callbacks.BackupAndRestore(os.path.join(output, "backup")))
        callbacks.append(keras.callbacks.TensorBoard(os.path.join(output, "logs")))
        callbacks.append(
            keras.callbacks.ModelCheckpoint(
                os.path.join(output, "best.keras"), monitor="accuracy", save_best_only=True
            )
        )
    model.fit(train, steps_per_epoch=args.steps, epochs=args.epochs, callbacks=callbacks, verbose=0)


if __name__ == "__main__":
    main()
