import numpy as np

from offbeat.replay.uniform import UniformReplay


class Recent(UniformReplay):
    """Draws new rows more often: a drawn row's age, as a share of all rows, is a random number to the power `power`."""

    def __init__(self, schema, settings, power=2.0):
        super().__init__(schema, settings)
        self.power = power

    def positions(self, rng, shape, total):
        ages = rng.random(shape[0] * shape[1]) ** self.power * total
        return total - 1 - ages.astype(np.int64)
