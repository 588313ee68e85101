from torch.optim.lr_scheduler import LRScheduler


def warm_up_and_fall(progress, warm_up=0.05, floor=0.1):
    """Rises over the first share `warm_up` of the run, then falls to `floor`."""
    return min(1.0, progress / warm_up) if progress < warm_up else max(floor, 1.0 - progress)


class InverseRoot(LRScheduler):
    """Constant over the first `constant` updates, then falls with the root of their number."""

    def __init__(self, optimizer, constant=1_000, last_epoch=-1):
        self.constant = constant
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [rate * (self.constant / max(self.constant, self.last_epoch)) ** 0.5 for rate in self.base_lrs]
