"""Matrix products by oneDNN, where it is faster: the same results, by a rule of sizes and processor."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small_backends as small
from driven_learner import Learner
from offbeat import processor
from offbeat.algorithms.torch import products
from offbeat.settings import make_learner_config

SIZES = (128, 128, 128)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, torch.Size]]:
    """As on a processor where oneDNN is faster; the sizes of the products that it computes."""
    if not products._ONEDNN:
        pytest.skip("this torch has no oneDNN")
    seen, compute = [], products._onednn_product

    def spied(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        seen.append((left.shape, right.shape))
        return compute(left, right)

    monkeypatch.setattr(products, "_SLOW_BLAS", True)
    monkeypatch.setattr(products, "_onednn_product", spied)
    return seen


def operands(*lead: int, transposed: str = "", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    rows, inner, columns = SIZES
    left, right = torch.randn(*lead, rows, inner, dtype=dtype), torch.randn(*lead, inner, columns, dtype=dtype)
    return (left.mT.contiguous().mT if transposed == "left" else left), (
        right.mT.contiguous().mT if transposed == "right" else right
    )


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("transposed", ["", "left", "right"])
def test_large_products_are_oneDNNs_and_the_same_up_to_rounding(onednn: Any, transposed: str, lead: tuple) -> None:
    left, right = operands(*lead, transposed=transposed)
    wanted, out = left.double() @ right.double(), torch.full((*lead, *SIZES[::2]), 7.0)
    assert products.product(left, right, out) is out
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)
    products.add_product(left, right, out)
    torch.testing.assert_close(out.double(), 2 * wanted, rtol=1e-4, atol=1e-4)
    found = products.product_in(torch.empty_like(out), left, right)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    assert len(onednn) == 3 * max(1, sum(lead))


def test_small_products_and_other_precisions_are_left_to_torch(onednn: Any) -> None:
    left, right = operands()
    out = torch.empty(64, SIZES[2])
    assert torch.equal(products.product(left[:64], right, out), left[:64] @ right)
    left, right = operands(dtype=torch.float64)
    assert torch.equal(products.product(left, right, torch.empty_like(left)), left @ right)
    assert torch.equal(products.product_in(torch.empty_like(left), left, right), left @ right)
    assert not onednn


@pytest.mark.parametrize("name", ["_ONEDNN", "_SLOW_BLAS"])
def test_torch_computes_what_oneDNN_cannot_or_need_not(onednn: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = operands()
    monkeypatch.setattr(products, name, False)
    assert torch.equal(products.product(left, right, torch.empty_like(left)), left @ right)
    monkeypatch.setattr(products, name, True)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert torch.equal(products.product(left, right, torch.empty_like(left)), left @ right)
    assert not onednn


@pytest.mark.parametrize("counts", [[100, 156], [0, 256], [256, 0], [97, 159], [3, 253], [256]])
def test_rows_that_go_with_different_members_are_computed_in_few_sizes(onednn: Any, counts: list[int]) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(256, 128), torch.randn(len(counts), 128, 128)
    out = products.product_by_member(left, right, counts, torch.empty(256, 128))
    parts = [rows.double() @ matrix.double() for rows, matrix in zip(left.split(counts), right, strict=True)]
    torch.testing.assert_close(out.double(), torch.cat(parts), rtol=1e-4, atol=1e-4)
    assert all(rows % products.PADDED_TO == 0 for (rows, _), _ in onednn)
    assert len(onednn) == sum(count * 128 * 128 >= products.FAST_FROM for count in counts)


def learners(**settings: Any) -> list[Learner]:
    config = make_learner_config("sac", hidden=(128, 128), batch_size=128, **settings)
    autograd = dataclasses.replace(config.optimisation, gradients="autograd")
    configs = config, config, dataclasses.replace(config, optimisation=autograd)
    return [Learner("sac", each, small.BOX, rng=np.random.default_rng(1), precision="float32") for each in configs]


def test_updates_repeat_exactly_and_agree_with_autograd(onednn: Any) -> None:
    made, given = learners(), small.batches(small.BOX, 3, 128)
    for learner in made:
        small.learn(learner.backend, given)
    assert len(onednn) > 50
    first, again, autograd = made
    assert small.same(first.backend, again.backend)
    for name in ("actor", "critic"):
        ours, theirs = getattr(first.state, name).flat, getattr(autograd.state, name).flat
        assert float((ours - theirs).norm() / theirs.norm()) < 2e-3  # Adam turns rounding errors into steps


def test_the_rule_knows_the_processors_maker(tmp_path: Path) -> None:
    (tmp_path / "amd").write_text("processor : 0\nvendor_id\t: AuthenticAMD\n\nprocessor : 1\n")
    assert processor.vendor(tmp_path / "amd") == "AuthenticAMD"
    assert processor.vendor(tmp_path / "none") == ""
    assert (processor.vendor() in ("AuthenticAMD", "HygonGenuine")) == products._SLOW_BLAS
