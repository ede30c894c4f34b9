"""Print the steps of the loss that TensorBoard shows for a folder, as JSON."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0})
events.Reload()
print(json.dumps([event.step for event in events.Tensors("loss")]))
