import numpy as np

from offbeat.replay.transitions import split_keys
from offbeat.replay.uniform import UniformReplay
from offbeat.types import Batches


class Prioritised(UniformReplay):
    """Draws rows in proportion to |TD error|^alpha (Schaul et al. 2016); weights correct for it to the power beta."""

    wants_td_errors = True

    def __init__(self, schema, settings, alpha=0.6, beta=0.4):
        super().__init__(schema, settings)
        self.alpha, self.beta = alpha, beta
        self.saved = {"largest": np.ones(1)}  # and of each worker: the priority of each place, and the rows seen so far

    def attach(self, store):
        super().attach(store)
        self.saved |= {f"priorities/{store.worker}": np.zeros(store.capacity), f"seen/{store.worker}": np.zeros(1, int)}

    def held(self, shard, oldest, committed):
        """The priorities of the rows that a shard holds; a new row has the largest so far."""
        priorities, seen = self.saved[f"priorities/{shard.worker}"], self.saved[f"seen/{shard.worker}"]
        priorities[np.arange(max(oldest, seen[0]), committed) % shard.capacity] = self.saved["largest"]
        seen[0] = committed
        return priorities[np.arange(oldest, committed) % shard.capacity]

    def draw(self, rng, count):
        shape, columns = (count, self.settings.batch_size), None
        while columns is None:  # a collector has overwritten one of the rows meanwhile: draw again
            held = self.reader.held()
            each = zip(self.reader.shards, held, strict=True)
            priorities = np.concatenate([self.held(shard, *rows) for shard, rows in each])
            sums = priorities.cumsum()
            drawn = np.searchsorted(sums, rng.random(shape).ravel() * sums[-1], side="right")
            keys = self.reader.keys(held, drawn)
            columns = self.reader.read(keys, held, shape)
        weight = (priorities[drawn].reshape(shape) / sums[-1] * len(sums)) ** -self.beta
        return Batches(columns, keys.reshape(shape), weight / weight.max(1, keepdims=True))

    def feedback(self, rows, td_errors):
        found = (td_errors.ravel() + 1e-6) ** self.alpha
        self.saved["largest"][0] = max(self.saved["largest"][0], found.max())
        workers, sequences = split_keys(rows.ravel())
        for shard in self.reader.shards:
            mine = (workers == shard.worker) & (sequences >= shard.oldest)
            self.saved[f"priorities/{shard.worker}"][sequences[mine] % shard.capacity] = found[mine]

    def arrays(self):
        return {name: array.copy() for name, array in self.saved.items()}

    def restore(self, arrays):
        self.saved |= {name: np.array(array) for name, array in arrays.items()}
        for shard in self.reader.shards:  # with another capacity than before, each row has another place
            name, (seen,) = f"priorities/{shard.worker}", self.saved[f"seen/{shard.worker}"]
            before, self.saved[name] = self.saved[name], np.zeros(shard.capacity)
            rows = np.arange(max(0, seen - min(len(before), shard.capacity)), seen)
            self.saved[name][rows % shard.capacity] = before[rows % len(before)]
