import numpy as np


class LargestScale:
    """Divides each number of an observation by the largest magnitude that it has had, so that all are in [-1, 1]."""

    def __init__(self, spec):
        self.largest = np.full(spec.observation_size, 1e-3, np.float32)

    def update(self, observations):
        self.largest = np.maximum(self.largest, np.abs(observations).max(0, initial=0.0))

    def __call__(self, observations):
        return np.clip(observations / self.largest, -1.0, 1.0)

    def arrays(self):
        return {"largest": self.largest}

    def restore(self, arrays):
        self.largest = np.array(arrays["largest"])
