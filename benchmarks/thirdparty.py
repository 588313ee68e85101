"""Trains a few hundred steps on third-party environments with `offbeat train`, and prints the result of each.

make thirdparty, or: .bench/thirdparty/bin/python benchmarks/thirdparty.py [--only robotics]
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from importlib import metadata

SECONDS = 600  # timeout per environment; some need a minute to start


@dataclass(frozen=True)
class Trial:
    """package: the name on PyPI. flags: in addition to those that keep the run short."""

    package: str
    algorithm: str
    env: str
    flags: str = ""


TRIALS = (
    Trial("gymnasium-robotics", "sac", "gymnasium_robotics:FetchReach-v4"),
    Trial("gymnasium-robotics", "sac", "gymnasium_robotics:PointMaze_UMazeDense-v3"),
    Trial("gymnasium-robotics", "td3", "gymnasium_robotics:AdroitHandDoor-v1"),
    Trial("highway-env", "dqn", "highway_env:highway-fast-v0"),
    Trial("highway-env", "sac", "highway_env:parking-v0"),
    Trial("highway-env", "ppo", "highway_env:racetrack-v0"),
    Trial("minigrid", "ppo", "minigrid:MiniGrid-Empty-5x5-v0", "--env-wrapper minigrid.wrappers:FlatObsWrapper"),
    Trial("minigrid", "ppo", "minigrid:MiniGrid-Empty-5x5-v0"),
    Trial("panda-gym", "sac", "panda_gym:PandaReach-v3"),
    Trial("panda-gym", "ddpg", "panda_gym:PandaPush-v3"),
    Trial("pybullet-envs-gymnasium", "td3", "pybullet_envs_gymnasium:HalfCheetahBulletEnv-v0"),
    Trial("pybullet-envs-gymnasium", "appo", "pybullet_envs_gymnasium:AntBulletEnv-v0", "--num-envs 2 --collectors 1"),
    Trial("shimmy", "sac", "shimmy:dm_control/cartpole-balance-v0"),
    Trial("shimmy", "sac", "shimmy:dm_control/walker-walk-v0", "--num-envs 2 --collectors 1"),
    Trial("flappy-bird-gymnasium", "dqn", "flappy_bird_gymnasium:FlappyBird-v0", "--env-kwargs use_lidar=false"),
    Trial("flappy-bird-gymnasium", "dqn", "flappy_bird_gymnasium:FlappyBird-v0"),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="steps per environment (default: %(default)s)")
    parser.add_argument("--only", default="", help="try only packages and ids that contain this text")
    return parser.parse_args()


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def attempt(trial: Trial, steps: int) -> tuple[str, str]:
    """The result (not installed, works, refused, cannot be made, FAILS), and the error message if there is one."""
    if version(trial.package) is None:
        return "not installed", ""
    with tempfile.TemporaryDirectory() as out:
        flags = f"--env {trial.env} {trial.flags} --total-steps {steps} --eval-every {steps} --eval-episodes 1"
        flags += f" --max-episode-steps 200 --hidden 32 32 --threads 1 --quiet --out {out}"
        flags += " --rollout-steps 50" if trial.algorithm in ("ppo", "appo") else ""
        command = [sys.executable, "-m", "offbeat", "train", trial.algorithm, *shlex.split(flags)]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "FAILS", f"took more than {SECONDS} s"
    return judge(done.returncode, done.stderr)


def judge(code: int, stderr: str) -> tuple[str, str]:
    """code: exit code of the command. stderr: its standard error."""
    if code == 0:
        return "works", ""
    _, found, message = stderr.rpartition("offbeat: error: ")
    message = " ".join((message if found else stderr).split())
    if not found or "(unexpected; " in message:
        return "FAILS", message
    return ("cannot be made" if "could not be made" in message else "refused"), message


def main() -> int:
    options = arguments()
    chosen = [each for each in TRIALS if options.only in f"{each.package} {each.env}"]
    names = ("gymnasium", "mujoco", "numpy", "torch")
    print(", ".join(f"{name} {version(name)}" for name in names), flush=True)
    print("| package | environment | algorithm | result |\n|---|---|---|---|")
    failed = 0
    for trial in chosen:
        outcome, message = attempt(trial, options.steps)
        failed += outcome == "FAILS"
        package = f"{trial.package} {version(trial.package) or ''}".strip()
        settings = f"`{trial.env}`" + (f" `{trial.flags}`" if trial.flags else "")
        result = f"{outcome}: {textwrap.shorten(message, 240)}" if message else outcome
        print(f"| {package} | {settings} | {trial.algorithm} | {result} |", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
