"""Write what every way trains on: random sequences, as many places masked as can be.

    batches.py FILE.npz MODEL

Nothing but the time is looked at, so nothing need be learnt.
"""

import json
import sys

import numpy as np

SEQUENCES = 256

model = json.loads(sys.argv[2])
random = np.random.default_rng(1)
whole, masked = (SEQUENCES, model["length"]), (SEQUENCES, model["predictions"])
places = np.argsort(random.random((SEQUENCES, model["length"] - 2)), axis=1) + 1
arrays = {
    "input_ids": random.integers(5, model["vocabulary"], whole),
    "input_mask": np.ones(whole),
    "segment_ids": np.zeros(whole),
    "masked_lm_positions": np.sort(places[:, : model["predictions"]], axis=1),
    "masked_lm_ids": random.integers(5, model["vocabulary"], masked),
}
integers = {name: array.astype("int32") for name, array in arrays.items()}
np.savez(sys.argv[1], **integers, masked_lm_weights=np.ones(masked, "float32"))
