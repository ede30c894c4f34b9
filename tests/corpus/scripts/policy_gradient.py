"""A policy learnt by trying: a game in Python, choices in eager mode, one traced update."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras

LENGTH = 32


class Corridor:
    """Walk right to the end in few steps."""

    def __init__(self, size=6):
        self.size = size

    def reset(self):
        self.place, self.time = 0, 0
        return self.observe()

    def observe(self):
        state = np.zeros(self.size, "float32")
        state[self.place] = 1.0
        return state

    def step(self, action):
        self.time += 1
        self.place = min(self.size - 1, max(0, self.place + (1 if action == 1 else -1)))
        done = self.place == self.size - 1 or self.time >= LENGTH
        reward = 1.0 if self.place == self.size - 1 else -0.02
        return self.observe(), reward, done


def play(game, model, rng):
    states, actions, rewards = [], [], []
    state, done = game.reset(), False
    while not done:
        probabilities = tf.nn.softmax(model(state[None]))[0].numpy()
        action = int(rng.random() < probabilities[1])
        after, reward, done = game.step(action)
        states.append(state)
        actions.append(action)
        rewards.append(reward)
        state = after
    return states, actions, rewards


def returns(rewards, discount=0.98):
    total, found = 0.0, []
    for reward in reversed(rewards):
        total = reward + discount * total
        found.append(total)
    return np.array(found[::-1], "float32")


def padded(states, actions, values):
    """Episodes of one length, so that the update is compiled once; weights say what is there."""
    count = len(actions)
    x = np.zeros((LENGTH, len(states[0])), "float32")
    a = np.zeros(LENGTH, "int32")
    v = np.zeros(LENGTH, "float32")
    w = np.zeros(LENGTH, "float32")
    x[:count], a[:count], v[:count], w[:count] = states, actions, values, 1.0
    return x, a, v, w


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3, help="episodes")
    parser.add_argument("--rate", type=float, default=0.02)
    args = parser.parse_args()
    game, rng = Corridor(), np.random.default_rng(0)
    model = keras.Sequential([keras.Input((game.size,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(args.rate)
    optimizer.build(model.trainable_variables)

    @tf.function
    def update(x, a, v, w):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=a, logits=model(x))
            loss = tf.reduce_sum(losses * v * w) / tf.reduce_sum(w)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    recent = []
    for episode in range(args.steps):
        states, actions, rewards = play(game, model, rng)
        values = returns(rewards)
        if values.std() > 0:
            values = (values - values.mean()) / values.std()
        loss = update(*(tf.constant(one) for one in padded(states, actions, values)))
        recent = [*recent[-9:], len(rewards)]
        if episode % 10 == 0:
            print(f"episode {episode}: {np.mean(recent):.1f} steps, loss {float(loss):.3f}")
        if np.mean(recent) < game.size and len(recent) == 10:
            print("knows the way")
            break


if __name__ == "__main__":
    main()
