"""Asynchronous PPO over rollouts that are collected elsewhere."""
