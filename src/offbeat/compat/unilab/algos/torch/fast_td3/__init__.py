"""TD3 as a learner for `OffPolicyRunner`."""
