"""Losses that several programs share."""

import tensorflow as tf


def weighted_mean(losses, weights):
    weights = tf.cast(weights, losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), tf.reduce_sum(weights))


def mean_of_kept(losses, keep):
    return tf.reduce_mean(tf.boolean_mask(losses, keep))


def capped(loss, cap):
    if loss > cap:
        return tf.convert_to_tensor(cap)
    return loss
