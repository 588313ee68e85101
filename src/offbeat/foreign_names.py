"""Names of settings in other libraries; an error about such a name gives the name in Offbeat.

A name is looked up only if Offbeat has no such setting. `python -m offbeat.foreign_names` prints docs/coming_from.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

SB3, CLEANRL, SKRL, TIANSHOU, RLLIB = "Stable-Baselines3", "CleanRL", "skrl", "Tianshou", "RLlib"


@dataclass(frozen=True)
class Foreign:
    """A name of a setting in other libraries.

    users: the libraries. ours: names in Offbeat, each with how the value differs ("" if it does not); the first that
    the algorithm has applies. why: what to do if Offbeat has no such setting.
    """

    users: tuple[str, ...]
    ours: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


RATIO = "updates per environment step: gradient_steps / (train_freq * num_envs)"
UPDATES = {"updates_per_step": RATIO}
ACTION_UNITS = "for actions in [-1, 1]: divide by half of the width of the action space"
EPSILON_STEPS = "in environment steps: exploration_fraction * total_steps"
MINIBATCHES = "a number of parts, not of rows: rollout_steps * num_envs / batch_size"
SIZES = "the layer sizes alone, such as 256, 256"
TARGET_UPDATES = "in updates; the DQN of the other library counts environment steps"
TEMPERATURE = "fixed with temperature_value for a number, learned with temperature_initial for 'auto'"
OWN_NETWORKS = "hidden, activation and layer_norm are settings; actor and critic take networks of your own"
CALLABLE = "a callable (reward, step, total_steps) -> reward"

FOREIGN: dict[str, Foreign] = {
    # How long, where, and with what
    "total_timesteps": Foreign((SB3, CLEANRL), {"total_steps": ""}),
    "timesteps": Foreign((SKRL,), {"total_steps": "over all environments: timesteps * num_envs"}),
    "n_timesteps": Foreign((SB3,), {"total_steps": ""}),
    "max_epochs": Foreign((TIANSHOU,), {"total_steps": "number of epochs * steps per epoch"}),
    "n_envs": Foreign((SB3,), {"num_envs": ""}),
    "training_num": Foreign((TIANSHOU,), {"num_envs": ""}),
    "num_envs_per_env_runner": Foreign((RLLIB,), {"num_envs": "over all collectors together"}),
    "num_env_runners": Foreign((RLLIB,), {"collectors": ""}),
    "num_workers": Foreign((RLLIB,), {"collectors": ""}),
    "env_id": Foreign((CLEANRL, SB3), {"env": ""}),
    "wrapper_class": Foreign((SB3,), {"env_wrapper": "a callable that takes an environment and returns one"}),
    "env_config": Foreign((RLLIB,), {"env_kwargs": ""}),
    "cuda": Foreign((CLEANRL,), {"device": "cpu, cuda, cuda:1 or auto"}),
    "verbose": Foreign((SB3,), {"quiet": "for verbose=0; leave it out otherwise"}),
    "progress_bar": Foreign((SB3,), why="a run always shows its progress; leave it out, or use quiet to hide it"),
    "stats_window_size": Foreign((SB3,), why="means are those of the last 100 episodes; leave it out"),
    "callback": Foreign((SB3,), why="callbacks are an argument of offbeat.train, a list: callbacks=[...]"),
    "reset_num_timesteps": Foreign((SB3,), why="leave it out: resume continues the count, and init_from starts at 0"),
    "env_name": Foreign((), {"env": ""}),
    "vec_env_cls": Foreign((SB3,), {"collectors": "number of processes that step the environments; 0 for none"}),
    "monitor_wrapper": Foreign((SB3,), why="returns, lengths and successes are recorded anyway; leave it out"),
    "render_mode": Foreign((), {"env_kwargs": "render_mode=human; `offbeat play RUN` shows a policy without it"}),
    "headless": Foreign((SKRL,), why="training shows no window; leave it out"),
    "capture_video": Foreign((CLEANRL,), why="leave it out: `offbeat eval RUN --video` records a policy"),
    "save_model": Foreign((CLEANRL,), {"checkpoint_every": "in steps; the final policy is always saved"}),
    "torch_deterministic": Foreign((CLEANRL,), why="the same seed always gives the same numbers; leave it out"),
    "deterministic": Foreign((SB3,), why="evaluations act deterministically, training explores; leave it out"),
    "tensorboard_log": Foreign((SB3,), {"out": "the directory of all runs; tensorboard is a logger by default"}),
    "track": Foreign((CLEANRL,), {"logger": "tensorboard,wandb"}),
    "wandb_project_name": Foreign((CLEANRL,), {"logger": "wandb, with the variable WANDB_PROJECT in its environment"}),
    "wandb_entity": Foreign((CLEANRL,), {"logger": "wandb, with the variable WANDB_ENTITY in its environment"}),
    "exp_name": Foreign((CLEANRL,), {"name": ""}),
    "experiment_name": Foreign((SKRL,), {"name": ""}),
    "tb_log_name": Foreign((SB3,), {"name": ""}),
    "eval_freq": Foreign((SB3,), {"eval_every": "in environment steps, over all environments"}),
    "n_eval_episodes": Foreign((SB3,), {"eval_episodes": ""}),
    "save_freq": Foreign((SB3,), {"checkpoint_every": "in environment steps, over all environments"}),
    "checkpoint_interval": Foreign((SKRL,), {"checkpoint_every": ""}),
    "log_interval": Foreign((SB3,), {"log_every": "in environment steps"}),
    "write_interval": Foreign((SKRL,), {"log_every": ""}),
    # Replay and its rhythm
    "learning_starts": Foreign(
        (SB3, CLEANRL, SKRL),
        {"warmup_steps": "steps before the first update; random_steps are those with random actions"},
    ),
    "num_steps_sampled_before_learning_starts": Foreign((RLLIB,), {"warmup_steps": ""}),
    "random_timesteps": Foreign((SKRL,), {"random_steps": ""}),
    "start_timesteps": Foreign((TIANSHOU,), {"random_steps": "and warmup_steps for the steps before the first update"}),
    "buffer_size": Foreign((SB3, CLEANRL, TIANSHOU), {"capacity": ""}),
    "memory_size": Foreign((SKRL,), {"capacity": "over all environments: memory_size * num_envs"}),
    "gradient_steps": Foreign((SB3, SKRL), UPDATES),
    "train_freq": Foreign((SB3,), UPDATES),
    "train_frequency": Foreign((CLEANRL,), UPDATES),
    "update_interval": Foreign((SKRL,), UPDATES),
    "update_per_step": Foreign((TIANSHOU,), {"updates_per_step": ""}),
    "training_intensity": Foreign((RLLIB,), {"updates_per_step": "training_intensity / batch_size"}),
    "replay_buffer_class": Foreign((SB3,), why="replay is uniform; capacity and n_step are its settings"),
    "rollout_buffer_class": Foreign((SB3,), why="rollouts have no buffer class; leave it out"),
    "optimize_memory_usage": Foreign((SB3,), why="leave it out: replay stores packed float32 rows"),
    # Learning
    "batch_size": Foreign((SB3,), {"minibatches": MINIBATCHES}),
    "minibatch_size": Foreign((RLLIB,), {"minibatches": MINIBATCHES}),
    "train_batch_size": Foreign((RLLIB,), {"batch_size": "", "rollout_steps": "train_batch_size / num_envs"}),
    "lr": Foreign((TIANSHOU, RLLIB), {"learning_rate": ""}),
    "policy_lr": Foreign((CLEANRL,), {"actor_learning_rate": ""}),
    "actor_lr": Foreign((TIANSHOU, RLLIB), {"actor_learning_rate": ""}),
    "q_lr": Foreign((CLEANRL,), {"critic_learning_rate": ""}),
    "critic_lr": Foreign((TIANSHOU, RLLIB), {"critic_learning_rate": ""}),
    "alpha_lr": Foreign((TIANSHOU, RLLIB), {"temperature_learning_rate": ""}),
    "entropy_learning_rate": Foreign((SKRL,), {"temperature_learning_rate": ""}),
    "anneal_lr": Foreign((CLEANRL,), {"schedule": "linear", "actor_schedule": "linear; critic_schedule likewise"}),
    "lr_schedule": Foreign(
        (RLLIB,), {"schedule": "linear, cosine, or a callable", "actor_schedule": "also critic_schedule"}
    ),
    "learning_rate_scheduler": Foreign(
        (SKRL,), {"rate_control": "adaptive for KLAdaptiveLR; schedule for the others", "actor_schedule": ""}
    ),
    "discount_factor": Foreign((SKRL,), {"gamma": ""}),
    "discount": Foreign((), {"gamma": ""}),
    "polyak": Foreign((SKRL,), {"tau": "the weight of the online network: 0.005, not 0.995"}),
    "target_update_interval": Foreign((SB3, SKRL), {"target_every": TARGET_UPDATES}),
    "target_network_frequency": Foreign((CLEANRL,), {"target_every": TARGET_UPDATES}),
    "target_network_update_freq": Foreign((RLLIB,), {"target_every": TARGET_UPDATES}),
    "target_update_freq": Foreign((TIANSHOU,), {"target_every": ""}),
    "policy_delay": Foreign((SB3, SKRL), {"actor_every": ""}),
    "policy_frequency": Foreign((CLEANRL,), {"actor_every": ""}),
    "update_actor_freq": Foreign((TIANSHOU,), {"actor_every": ""}),
    "grad_norm_clip": Foreign((SKRL,), {"max_grad_norm": "none instead of 0"}),
    "grad_clip": Foreign((RLLIB,), {"max_grad_norm": ""}),
    "estimation_step": Foreign((TIANSHOU,), {"n_step": ""}),
    "n_step_return_horizon": Foreign((TIANSHOU,), {"n_step": ""}),
    "reward_scaling": Foreign((), {"reward_scale": ""}),
    "rewards_shaper": Foreign((SKRL,), {"reward_shaping": CALLABLE}),
    "norm_obs": Foreign((SB3,), {"normalise_observations": ""}),
    "norm_reward": Foreign((SB3,), {"normalise_rewards": ""}),
    "normalize": Foreign((SB3,), {"normalise_observations": "and normalise_rewards"}),
    "normalize_observations": Foreign((), {"normalise_observations": ""}),
    "normalize_rewards": Foreign((), {"normalise_rewards": ""}),
    "clip_obs": Foreign((SB3,), {"observation_clip": "with normalise_observations"}),
    "state_preprocessor": Foreign((SKRL,), {"normalise_observations": "true for RunningStandardScaler"}),
    "observation_preprocessor": Foreign((SKRL,), {"normalise_observations": "true for RunningStandardScaler"}),
    "optimizer_class": Foreign((SB3,), {"optimiser": "by its name: adam, adamw, rmsprop or sgd"}),
    "optimizer_kwargs": Foreign(
        (SB3,), {"adam_epsilon": "for eps; adam_betas for betas, weight_decay for weight_decay"}
    ),
    "mixed_precision": Foreign((SKRL,), {"precision": "bfloat16 or float16"}),
    # Networks
    "net_arch": Foreign((SB3,), {"hidden": SIZES + "; critic_hidden where the critics' differ"}),
    "hidden_sizes": Foreign((TIANSHOU,), {"hidden": SIZES}),
    "fcnet_hiddens": Foreign((RLLIB,), {"hidden": SIZES}),
    "hidden_dim": Foreign((), {"hidden": SIZES}),
    "actor_hidden": Foreign((), {"hidden": "critic_hidden where the critics' differ"}),
    "layers": Foreign((), {"hidden": SIZES}),
    "features_extractor_class": Foreign((SB3,), {"actor": "your own network, with the encoder in it; critic likewise"}),
    "features_extractor_kwargs": Foreign((SB3,), {"actor": "your own network, made with what it needs"}),
    "ortho_init": Foreign((SB3,), {"actor": "your own network, initialised as you like; critic likewise"}),
    "squash_output": Foreign((SB3,), {"squash": ""}, "the policy is squashed by tanh; leave it out"),
    "normalize_images": Foreign((SB3,), why="this version does not take images; leave it out"),
    "policy_kwargs": Foreign((SB3,), {"hidden": f"its parts are settings of their own: {OWN_NETWORKS}"}),
    "policy": Foreign((SB3,), {"hidden": f"networks are made from the environment's spaces; {OWN_NETWORKS}"}),
    "models": Foreign((SKRL,), {"hidden": OWN_NETWORKS}),
    "activation_fn": Foreign((SB3,), {"activation": "by its name: tanh"}),
    "fcnet_activation": Foreign((RLLIB,), {"activation": ""}),
    "n_critics": Foreign((SB3,), {"critics": ""}),
    "twin_q": Foreign((RLLIB,), {"critics": "2 for true"}),
    "log_std_init": Foreign((SB3,), {"initial_log_std": "of actions in [-1, 1]"}),
    # Exploration and entropy
    "ent_coef": Foreign((SB3, CLEANRL, TIANSHOU), {"temperature": TEMPERATURE, "entropy_coefficient": ""}),
    "alpha": Foreign((CLEANRL, TIANSHOU), {"temperature_value": "with temperature: fixed"}),
    "autotune": Foreign((CLEANRL,), {"temperature": "learned or fixed"}),
    "learn_entropy": Foreign((SKRL,), {"temperature": "learned or fixed"}),
    "initial_entropy_value": Foreign((SKRL,), {"temperature_initial": ""}),
    "initial_alpha": Foreign((RLLIB,), {"temperature_initial": ""}),
    "target_entropy": Foreign((SB3, SKRL), {"temperature_target_entropy": "none for 'auto'"}),
    "use_sde": Foreign((SB3,), why="there is no state-dependent exploration; leave it out"),
    "use_sde_at_warmup": Foreign((SB3,), why="there is no state-dependent exploration; leave it out"),
    "sde_sample_freq": Foreign((SB3,), why="there is no state-dependent exploration; leave it out"),
    "action_noise": Foreign(
        (SB3,), {"exploration": f"gaussian or ornstein_uhlenbeck; exploration_scale {ACTION_UNITS}"}
    ),
    "exploration_noise": Foreign((CLEANRL, TIANSHOU), {"exploration_scale": "for actions in [-1, 1]"}),
    "target_policy_noise": Foreign((SB3,), {"target_noise": ""}),
    "policy_noise": Foreign((CLEANRL, TIANSHOU), {"target_noise": ""}),
    "smooth_regularization_noise": Foreign((SKRL,), {"target_noise": "its standard deviation"}),
    "noise_clip": Foreign((CLEANRL, TIANSHOU), {"target_noise_clip": ""}),
    "smooth_regularization_clip": Foreign((SKRL,), {"target_noise_clip": ""}),
    "exploration_fraction": Foreign((SB3, CLEANRL), {"exploration_steps": EPSILON_STEPS}),
    "exploration_initial_eps": Foreign((SB3,), {"exploration_initial": ""}),
    "start_e": Foreign((CLEANRL,), {"exploration_initial": ""}),
    "initial_epsilon": Foreign((SKRL,), {"exploration_initial": ""}),
    "exploration_final_eps": Foreign((SB3,), {"exploration_final": ""}),
    "end_e": Foreign((CLEANRL,), {"exploration_final": ""}),
    "final_epsilon": Foreign((SKRL,), {"exploration_final": ""}),
    "epsilon": Foreign((RLLIB,), {"exploration_final": "with exploration_initial and exploration_steps"}),
    # Rollouts
    "n_steps": Foreign((SB3,), {"rollout_steps": "", "n_step": "steps of reward before the critic's value is used"}),
    "num_steps": Foreign((CLEANRL,), {"rollout_steps": ""}),
    "rollouts": Foreign((SKRL,), {"rollout_steps": ""}),
    "rollout_fragment_length": Foreign((RLLIB,), {"rollout_steps": ""}),
    "step_per_collect": Foreign((TIANSHOU,), {"rollout_steps": "of each environment: step_per_collect / num_envs"}),
    "n_epochs": Foreign((SB3,), {"epochs": ""}),
    "update_epochs": Foreign((CLEANRL,), {"epochs": ""}),
    "learning_epochs": Foreign((SKRL,), {"epochs": ""}),
    "repeat_per_collect": Foreign((TIANSHOU,), {"epochs": ""}),
    "num_epochs": Foreign((RLLIB,), {"epochs": ""}),
    "num_sgd_iter": Foreign((RLLIB,), {"epochs": ""}),
    "num_minibatches": Foreign((CLEANRL,), {"minibatches": ""}),
    "mini_batches": Foreign((SKRL,), {"minibatches": ""}),
    "lambda": Foreign((SKRL,), {"gae_lambda": ""}),
    "lambda_": Foreign((RLLIB,), {"gae_lambda": ""}),
    "clip_range": Foreign((SB3,), {"clip": ""}),
    "clip_coef": Foreign((CLEANRL,), {"clip": ""}),
    "ratio_clip": Foreign((SKRL,), {"clip": ""}),
    "eps_clip": Foreign((TIANSHOU,), {"clip": ""}),
    "clip_param": Foreign((RLLIB,), {"clip": ""}),
    "clip_range_vf": Foreign((SB3,), {"value_clip": ""}),
    "clip_vloss": Foreign((CLEANRL,), {"value_clip": "the width, such as 0.2, instead of true; none for false"}),
    "vf_clip_param": Foreign((RLLIB,), {"value_clip": ""}),
    "vf_coef": Foreign((SB3, CLEANRL, TIANSHOU), {"value_coefficient": ""}),
    "value_loss_scale": Foreign((SKRL,), {"value_coefficient": ""}),
    "vf_loss_coeff": Foreign((RLLIB,), {"value_coefficient": ""}),
    "entropy_loss_scale": Foreign((SKRL,), {"entropy_coefficient": ""}),
    "entropy_coeff": Foreign((RLLIB,), {"entropy_coefficient": ""}),
    "kl_threshold": Foreign((SKRL,), {"target_kl": "none instead of 0"}),
    "normalize_advantage": Foreign((SB3,), {"normalise_advantages": ""}),
    "norm_adv": Foreign((CLEANRL,), {"normalise_advantages": ""}),
}

ALGORITHMS = {
    "a2c": "ppo, with epochs 1 and minibatches 1",
    "a3c": "appo",
    "impala": "appo",
    "trpo": "ppo",
    "droq": "redq, with critic_dropout and critic_layer_norm",
    "tqc": "sac",
    "crossq": "sac",
    "rainbow": "dqn, with dueling and n_step",
    "qrdqn": "dqn",
}
"""Algorithms that Offbeat does not have, and the nearest one that it has."""


def answer(key: str, known: Collection[str], spell: Callable[[str], str] = str) -> str | None:
    """How to replace a name of another library, also if it is misspelt; None if there is no such name.

    known: the settings of the algorithm.
    """
    name = key.lower().replace("-", "_")
    if name not in FOREIGN:
        close = difflib.get_close_matches(name, [*known, *FOREIGN], n=1, cutoff=0.8)
        if not close or close[0] in known:
            return None
        name = close[0]
    entry = FOREIGN[name]
    ours = next((each for each in entry.ours if each in known), None)
    if ours is not None:
        note = entry.ours[ours]
        return f"use {spell(ours)}" + (f" ({note})" if note else "")
    if entry.why:
        return entry.why
    return f"its name here is {' or '.join(entry.ours)}, which this algorithm does not have: leave it out"


def markdown() -> str:
    """The page docs/coming_from.md."""
    lines = [
        "# Coming from another library",
        "",
        "Generated from `src/offbeat/foreign_names.py` by `python -m offbeat.foreign_names --markdown`; do not",
        "edit by hand.",
        "",
        "Names of settings in other libraries, and their names in Offbeat. Offbeat does not accept the other names;",
        "the error gives the Offbeat name, in Python, in a YAML file and on the command line (`--buffer-size`: use",
        "`--capacity`). [settings.md](settings.md) describes every setting.",
        "",
        "Every algorithm has `learning_rate`. If actor, critics and temperature have separate rates, it sets all of",
        "them; a specific rate overrides it. `config.yaml` records each rate.",
        "",
        "Scripts for these projects run with other imports alone:",
        "",
        "- [metarl](coming_from_metarl.md)",
        "- [skrl](coming_from_skrl.md): SAC for PyTorch",
        "- [tmrl](coming_from_tmrl.md)",
        "- [UniLab](coming_from_unilab.md)",
        "",
        "| name | in | name in Offbeat | how the value differs |",
        "|---|---|---|---|",
    ]
    for name, entry in FOREIGN.items():
        rows = entry.ours or {"": entry.why}
        for number, (ours, note) in enumerate(rows.items()):
            first = (f"`{name}`", ", ".join(entry.users)) if number == 0 else ("", "or")
            lines.append(f"| {first[0]} | {first[1]} | {f'`{ours}`' if ours else '-'} | {note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    if sys.argv[1:] != ["--markdown"]:
        sys.exit("usage: python -m offbeat.foreign_names --markdown > docs/coming_from.md")
    print(markdown(), end="")
