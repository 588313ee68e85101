"""Soft actor-critic."""

from offbeat.compat.skrl.agents.torch.sac.sac import SAC
from offbeat.compat.skrl.agents.torch.sac.sac_cfg import SAC_CFG
from offbeat.compat.skrl.agents.torch.sac.sac_rnn import SAC_RNN

__all__ = ["SAC", "SAC_CFG", "SAC_RNN"]
