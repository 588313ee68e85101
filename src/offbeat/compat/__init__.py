"""The documented interfaces of other projects, as adapters over our learner, replay, runner and checkpoints."""
