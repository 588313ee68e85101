"""SAC as a learner for `OffPolicyRunner`."""
