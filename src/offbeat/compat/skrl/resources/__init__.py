"""Parts of agents: preprocessors and learning-rate schedulers."""
