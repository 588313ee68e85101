"""The registry: one record per algorithm, ours or a user's, and everything that is derived from it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat import flat, settings
from offbeat.algorithms.registry import ALGORITHMS, Algorithm, check_actions, find, key_of, kind_of_actions
from offbeat.cli import main
from offbeat.errors import SpaceError, UsageError
from offbeat.learn.torch import TorchBackend
from own_parts import expectile
from specs import choice_spec, vector_spec

SHORT: dict[str, Any] = {"total_steps": 40, "eval_every": 0, "eval_episodes": 1, "logger": (), "quiet": True}
SMALL: dict[str, Any] = {"hidden": (4,), "batch_size": 4, "gamma": 0.9}
ALGORITHM = dataclasses.replace(
    expectile.ALGORITHM, name="own", defaults=SMALL, run_defaults={"warmup_steps": 10}, without=("random_steps",)
)
NAME = f"{__name__}:ALGORITHM"
NAMED_DQN = dataclasses.replace(ALGORITHM, name="dqn")
NOT_A_RECORD = 3
HYPHEN = dataclasses.replace(ALGORITHM, name="soft-q")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_record_names_settings_and_functions_that_exist(name: str) -> None:
    record = find(name)
    own = {leaf.name for leaf in flat.leaves(record.config)}
    run = {leaf.name for leaf in flat.leaves(settings.Run)}
    assert set(record.defaults) <= own
    assert set(record.run_defaults) <= run
    assert set(record.without) <= own | run
    for prefix in record.groups.values():
        assert {f"{prefix}learning_rate", f"{prefix}schedule"} <= own
    learn = "update" if record.learns_from == "replay" else "learn_rollout"
    for spec in (vector_spec(), choice_spec()):
        if kind_of_actions(spec) in record.actions:
            module = record.module("torch", spec)
            assert all(hasattr(module, function) for function in ("init", learn, "policy_description"))


@pytest.mark.parametrize("name", [name for name, each in ALGORITHMS.items() if each.variant_of])
def test_a_variant_is_another_algorithm_with_other_defaults(name: str) -> None:
    record = ALGORITHMS[name]
    assert record.variant_of is not None
    other = ALGORITHMS[record.variant_of]
    assert (record.config, record.modules, record.groups) == (other.config, other.modules, other.groups)
    changed = settings.make_config(record.variant_of, {**record.defaults, **record.run_defaults})
    same = settings.make_config(name, {})
    assert (changed.run, changed.learner) == (same.run, same.learner)


def test_configs_inherit_at_most_once() -> None:
    for record in ALGORITHMS.values():
        for kind in (record.config, *(each.metadata.get("group") for each in dataclasses.fields(record.config))):
            assert kind is None or len(kind.__mro__) <= 3, kind


def test_what_takes_the_actions_is_listed_from_the_records() -> None:
    with pytest.raises(SpaceError, match=r"Discrete actions, which own does not take; use sac, redq, dqn, ppo or appo"):
        check_actions(ALGORITHM, choice_spec())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (f"{__name__}:NOT_A_RECORD", "is a int, not an offbeat.algorithms.registry.Algorithm"),
        (f"{__name__}:MISSING", "has no 'MISSING'"),
        (f"{__name__}:HYPHEN", "Algorithm.name='soft-q'. must be letters, digits and _"),
        ("no_such_module:A", "there is no module 'no_such_module'"),
        (dataclasses.replace(ALGORITHM, name="sac"), "has the name of one of Offbeat's own"),
        (f"{__name__}:NAMED_DQN", "has the name of one of Offbeat's own"),
        (dataclasses.replace(ALGORITHM, name="a:b"), "must be letters, digits and _"),
        ("sacc", "did you mean sac"),
    ],
)
def test_what_is_no_algorithm_is_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find(given)


@pytest.mark.parametrize("given", ["sharpen", "sharpen.py", "./sharpen.py"])
def test_a_module_without_the_record_in_it_is_answered_with_the_whole_name(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="given as module:thing or, in Python"):
        find(given)
    (tmp_path / "sharpen.py").write_text("")
    with pytest.raises(UsageError, match=r"given as module:thing \(sharpen:ALGORITHM if the record in sharpen is"):
        find(given)


def test_a_record_in_a_module_trains_and_resumes_by_its_name(tmp_path: Path) -> None:
    run = offbeat.train(NAME, "Pendulum-v1", out=str(tmp_path), name="run", expectile=0.6, **SHORT)
    assert settings.read_yaml(run.path / "config.yaml")["algorithm"] == NAME
    assert "random_steps" not in settings.read_yaml(run.path / "config.yaml")
    assert offbeat.resume(run.path, total_steps=60, quiet=True).status == "finished"
    assert offbeat.evaluate(run.path, episodes=1).episodes == 1
    assert run.policy().act(vector_spec(3, 1).layout.read([[0.0] * 3])[0][0]).shape == (1,)


def test_the_command_line_and_a_file_take_a_record_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"algorithm: {NAME}\nexpectile: 0.7\n")
    line = f"train {NAME} --env Pendulum-v1 --config {file} --total-steps 40 --eval-every 0 --eval-episodes 1 --quiet"
    assert main([*line.split(), "--logger", "none", "--out", str(tmp_path), "--name", "run"]) == 0
    assert settings.read_yaml(tmp_path / "run" / "config.yaml")["expectile"] == 0.7
    assert main(["train", NAME, "--help"]) == 0
    assert "--expectile" in capsys.readouterr().out


def test_a_record_that_can_be_imported_is_saved_by_its_import_path(tmp_path: Path) -> None:
    run = offbeat.train(expectile.ALGORITHM, "Pendulum-v1", out=str(tmp_path), name="run", **{**SHORT, **SMALL})
    assert settings.read_yaml(run.path / "config.yaml")["algorithm"] == "own_parts.expectile:ALGORITHM"
    for line in ("resume RUN --total-steps 60 --quiet", "eval RUN --episodes 1"):
        command = [sys.executable, "-m", "offbeat", *line.replace("RUN", str(run.path)).split()]
        subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1])


def test_a_module_that_is_loaded_again_gives_its_new_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of(expectile.ALGORITHM) == "own_parts.expectile:ALGORITHM"
    new = dataclasses.replace(expectile.ALGORITHM, defaults={"tau": 0.5})
    monkeypatch.setattr(expectile, "ALGORITHM", new)
    assert find(key_of(new)) is new
    monkeypatch.undo()
    assert find(key_of(expectile.ALGORITHM)) is expectile.ALGORITHM


def test_a_record_that_is_passed_is_known_by_its_name_from_then_on(tmp_path: Path) -> None:
    record = dataclasses.replace(ALGORITHM, name="passed", modules={"torch": expectile})
    run = offbeat.train(record, "Pendulum-v1", out=str(tmp_path), name="run", **SHORT)
    assert settings.read_yaml(run.path / "config.yaml")["algorithm"] == "passed"
    assert offbeat.Agent("passed", vector_spec()).config.algorithm == "passed"
    script = (
        "import offbeat, dataclasses, sys\nfrom own_parts import expectile\n"
        "try: offbeat.resume(sys.argv[1], total_steps=60)\n"
        "except offbeat.errors.UsageError as error: print(error)\n"
        "record = dataclasses.replace(expectile.ALGORITHM, name='passed')\n"
        "assert offbeat.evaluate(sys.argv[1], algorithm=record, episodes=1).episodes == 1\n"
        "print(offbeat.resume(sys.argv[1], algorithm=record, total_steps=60, quiet=True).status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(run.path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert "pass it again: offbeat.resume(path, algorithm=ALGORITHM)" in done.stdout
    assert done.stdout.splitlines()[-1] == "finished"


def test_an_agent_takes_a_record() -> None:
    agent = offbeat.Agent(dataclasses.replace(ALGORITHM, name="of_an_agent"), vector_spec())
    assert agent.config.learner.returns.gamma == 0.9
    assert isinstance(find("of_an_agent"), Algorithm)


class Growing(TorchBackend):
    """Remembers every update; what it remembers has no fixed shape."""

    growing = ("seeds",)
    updates_per_call = 1
    seeds: list[int]

    def update(self, batches: Any, noise: Any, rates: Any, *, updates: int, seed: int, td_errors: bool) -> Any:
        self.seeds = [*getattr(self, "seeds", []), seed]
        return super().update(batches, noise, rates, updates=updates, seed=seed, td_errors=td_errors)

    def arrays(self) -> dict[str, Any]:
        return {**super().arrays(), "seeds": np.asarray(getattr(self, "seeds", []), np.int64)}

    def restore(self, arrays: Any) -> None:
        super().restore({name: array for name, array in arrays.items() if name != "seeds"})
        self.seeds = arrays["seeds"].tolist()


def test_a_module_may_make_a_backend_of_its_own_whose_state_grows(tmp_path: Path) -> None:
    made: list[Growing] = []

    def make_backend(config: Any, spec: Any, rng: Any) -> Growing:
        made.append(Growing(expectile, config.learner, spec, rng=rng, autograd=True))
        return made[-1]

    record = dataclasses.replace(ALGORITHM, name="grown", modules={"torch": SimpleNamespace(make_backend=make_backend)})
    run = offbeat.train(record, "Pendulum-v1", **SHORT, out=tmp_path)
    offbeat.resume(run.path, algorithm=record, total_steps=60, quiet=True)
    first, second = made
    assert len(first.seeds) > 0
    assert second.seeds[: len(first.seeds)] == first.seeds
    assert len(second.seeds) > len(first.seeds)
