"""precision and tf32 in a run: what is logged, resumed, warned of and refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat
from offbeat import processor
from offbeat.errors import UsageError
from offbeat.learn.torch_devices import tf32_products
from offbeat.run.checkpoint import Checkpoints
from short_runs import train
from small_agents import agent

X86 = "processor\t: 0\nflags\t\t: fpu avx2 avx512f {}\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n"


def lines(run: Any, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / name).read_text().splitlines()]


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the processor's flags are."""

    def write(text: str) -> None:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(processor.flags, "__defaults__", (str(tmp_path / "cpuinfo"),))

    return write


def test_a_run_in_float16_logs_its_skipped_updates_and_resumes_bit_for_bit(tmp_path: Path, cpuinfo: Any) -> None:
    cpuinfo(X86.format("avx512_fp16"))
    # The first gradients overflow.
    settings = {"reward_scale": 1e6, "precision": "float16", "updates_per_step": 1.0, "eval_every": 0}
    whole = train(tmp_path, name="whole", **settings)
    logged = [line["skipped_updates"] for line in lines(whole)]
    assert logged == sorted(logged)
    assert 0 < logged[-1] < 100
    assert lines(whole)[-1]["gradient_scale"] < 2.0**16
    summary = json.loads((whole.path / "summary.json").read_text())
    assert summary["skipped_updates"] == logged[-1]
    part = train(tmp_path, name="part", **settings, total_steps=60)
    resumed = offbeat.resume(part.path, total_steps=120, quiet=True)
    digests = [Checkpoints(each.path).load().arrays for each in (whole, resumed)]
    assert digests[0].keys() == digests[1].keys()
    assert all((digests[0][name] == digests[1][name]).all() for name in digests[0] if name.startswith("learner/"))
    with pytest.raises(UsageError, match="precision=float32 cannot change when a run is resumed"):
        offbeat.resume(part.path, precision="float32", total_steps=160)


@pytest.mark.slow
def test_a_run_in_mixed_precision_stays_with_torch(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    run = train(tmp_path, precision="bfloat16")
    with pytest.raises(UsageError, match="cannot be converted to jax: precision=bfloat16 needs backend=torch"):
        offbeat.convert(run.path, backend="jax")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("algorithm", ["sac", "appo"])
def test_collectors_act_with_weights_that_were_learned_in_half_precision(
    algorithm: str, precision: str, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"rollout_steps": 8} if algorithm == "appo" else {"warmup_steps": 20, "batch_size": 8}
    settings = {"collectors": 2, "num_envs": 4, "hidden": (8,), "total_steps": 200, "quiet": True, "logger": ()}
    run = offbeat.train(algorithm, "Pendulum-v1", out=str(tmp_path), precision=precision, **settings, **own)
    assert run.status == "finished"
    assert lines(run)[-1]["policy_lag"] is not None


# What the processor has.


@pytest.mark.parametrize(
    ("precision", "text"),
    [
        ("bfloat16", X86.format("avx512_bf16")),
        ("bfloat16", X86.format("amx_bf16")),
        ("bfloat16", ARM.format("bf16")),
        ("float16", X86.format("avx512_fp16")),
        ("float16", ARM.format("asimdhp")),
        ("bfloat16", ""),  # unknown
        ("float32", X86.format("")),
        ("float64", X86.format("")),
    ],
)
def test_precisions_that_the_processor_has_are_taken_in_silence(precision: str, text: str, cpuinfo: Any) -> None:
    cpuinfo(text)
    assert processor.slow_precision(precision, "cpu") is None


@pytest.mark.parametrize(("precision", "other"), [("bfloat16", "avx512_fp16"), ("float16", "avx512_bf16")])
def test_precisions_that_the_processor_has_not_are_warned_of(
    precision: str, other: str, cpuinfo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpuinfo(X86.format(other))
    with pytest.warns(UserWarning, match=rf"precision={precision} is slow here: .* times as long .*Use precision"):
        agent(precision=precision)
    assert processor.slow_precision(precision, "cuda") is None
    if precision == "bfloat16":
        train(tmp_path, precision=precision, total_steps=40, eval_episodes=0)
        assert "precision=bfloat16 is slow here" in capsys.readouterr().err


def test_this_processor_is_read() -> None:
    assert processor.flags() or not Path(processor.CPUINFO).exists()


# What is refused.


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"tf32": True}, r"tf32=True has no effect on device=cpu: .*; use device cuda, or leave tf32 out"),
        ({"tf32": True, "precision": "bfloat16"}, r"tf32.* has no effect, because it changes float32 products only"),
        ({"precision": "half"}, r"precision='half' .*float64, float32, bfloat16, float16"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        agent(**settings)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"precision": "bfloat16"}, "precision=bfloat16 needs backend=torch; JAX has float32 and float64"),
        ({"precision": "float16"}, "precision=float16 needs backend=torch"),
        ({"tf32": True}, "tf32=True is for backend=torch; for JAX set jax_default_matmul_precision"),
    ],
)
def test_jax_refuses_what_only_torch_has(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        agent(backend="jax", **settings)


def test_tf32_is_on_during_updates_only() -> None:
    part = torch.backends.cuda.matmul
    before = part.fp32_precision
    with contextlib.suppress(KeyError), tf32_products():
        assert part.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "tf32"
        raise KeyError
    assert part.fp32_precision == before
