"""Tomorrow's temperature from a week of hours: windows over a series, an LSTM, early stopping."""

import argparse
import os

import numpy as np
import tensorflow as tf

HOURS, AHEAD, FEATURES = 24, 6, 4


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3, help="steps an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


def synthetic_series(length=2000, seed=3):
    rng = np.random.default_rng(seed)
    hours = np.arange(length)
    temperature = 10 + 8 * np.sin(hours / 24 * 2 * np.pi) + rng.normal(0, 1, length)
    pressure = 1013 + rng.normal(0, 3, length).cumsum() / 10
    wind = np.abs(rng.normal(3, 2, length))
    humidity = np.clip(60 - temperature + rng.normal(0, 5, length), 0, 100)
    return np.stack([temperature, pressure, wind, humidity], axis=1).astype("float32")


def windows(series, targets, batch_size, shuffle):
    dataset = tf.keras.utils.timeseries_dataset_from_array(
        series[:-AHEAD],
        targets[HOURS - 1 + AHEAD :],
        sequence_length=HOURS,
        batch_size=None,
        shuffle=shuffle,
        seed=11,
    )
    dataset = dataset.map(lambda x, y: (tf.ensure_shape(x, (HOURS, FEATURES)), y))
    if shuffle:
        dataset = dataset.repeat()
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def build(units):
    return tf.keras.Sequential(
        [
            tf.keras.Input((HOURS, FEATURES)),
            tf.keras.layers.LSTM(units, return_sequences=True, dropout=0.1),
            tf.keras.layers.LSTM(units),
            tf.keras.layers.Dense(1),
        ]
    )


def plot(history, path):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots()
    axes.plot(history["loss"], label="train")
    axes.plot(history["val_loss"], label="validation")
    axes.legend()
    figure.savefig(path)


def main():
    args = parse_arguments()
    series = synthetic_series()
    split = int(len(series) * 0.7)
    mean, deviation = series[:split].mean(axis=0), series[:split].std(axis=0)
    series = (series - mean) / deviation
    targets = series[:, 0]

    train = windows(series[:split], targets[:split], args.batch_size, shuffle=True)
    valid = windows(series[split:], targets[split:], args.batch_size, shuffle=False)

    if os.environ.get("TPU_NAME"):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    else:
        strategy = tf.distribute.get_strategy()

    with strategy.scope():
        model = build(16)
        model.compile(optimizer="adam", loss="mse", metrics=["mae"])

    stopping = tf.keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True)
    history = model.fit(
        train,
        validation_data=valid.take(2),
        steps_per_epoch=args.steps,
        epochs=args.epochs,
        callbacks=[stopping],
    ).history

    for window, target in valid.take(1):
        guess = model.predict(window, verbose=0)[:3, 0]
        for wanted, found in zip(target.numpy()[:3], guess):
            print(f"{wanted * deviation[0] + mean[0]:.1f} °C, predicted {found * deviation[0] + mean[0]:.1f}")
    if len(history["loss"]) > 5:
        plot(history, "history.png")


if __name__ == "__main__":
    main()
