from concurrent.futures import ThreadPoolExecutor, wait

from offbeat.collect import CollectorReport, CollectorState


class Background:
    """Makes the next vector step in a thread while the learner learns from those before."""

    def __init__(self, context):
        self.num_envs, self.stepper = context.num_envs, context.stepper()
        self.pool, self.pending, self.publication = ThreadPoolExecutor(1), None, None
        self.allowed, self.loaded = -1, False

    def connect(self, *, note, trace, stop):
        self.stepper.note, self.stepper.trace = note, trace

    def publish(self, publication):
        self.publication = publication

    def allow(self, steps):
        self.allowed = steps

    def poll(self, timeout):
        self._begin()
        if self.pending is None or not wait([self.pending], timeout).done:
            return []
        chunk, self.pending = self.pending.result(), None
        self._begin()
        return [chunk]

    def _begin(self):
        if self.pending is None and self.stepper.ready(self.allowed):
            self.pending = self.pool.submit(self._step, self.publication)

    def _step(self, publication):
        if self.stepper.writer.may_change_weights or not self.loaded:
            self.stepper.load(publication)
            self.loaded = True
        return self.stepper.step()

    def oldest_version(self):
        return self.stepper.version

    def snapshot(self):
        self.allowed = -1  # the step that is under way is the last one before the snapshot
        chunks = self.poll(None)
        return CollectorState(*self.stepper.snapshot(), chunks)

    def restore(self, arrays, values):
        return self.stepper.restore(arrays, values)

    def report(self):
        return CollectorReport()

    def close(self):
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.shutdown()
            self.stepper.close()
