"""`twin`/`kde-sharded`: the contract of methods over shards, and what is its own."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from airlock.accounting import compute_epsilon
from airlock.mechanisms import Stream
from airlock.papers.twin.kde_sharded import KdeSharded
from tests.methods.twin.test_sharded import ShardsContract


class TestKdeSharded(ShardsContract):
    method = "kde-sharded"
    settings: ClassVar[dict[str, Any]] = {"shards": 250, "dimensions": 8, "grid": 64}

    def test_the_event_is_zcdp_of_all_coordinates(self) -> None:
        plan = self.build().plan()
        own, size = float(plan.details["epsilon_of_a_coordinate"]), int(plan.details["dimensions"])
        assert plan.guarantee.events == dpa.ZCDpEvent(size * own**2 / 8)
        assert plan.guarantee.accountant_used == "RDP"
        assert float(plan.details["noise_multiplier"]) == pytest.approx(math.sqrt(4 / (size * own**2)))

    def test_twice_the_weight_would_break_the_promise(self) -> None:
        details = self.build().plan().details
        rho = int(details["dimensions"]) * (2 * float(details["epsilon_of_a_coordinate"])) ** 2 / 8
        assert compute_epsilon(dpa.ZCDpEvent(rho), self.delta).epsilon > 1.5 * self.epsilon

    def test_what_leaves_lies_on_the_public_grid_near_where_the_shards_agree(self) -> None:
        channel = self.build()
        assert isinstance(channel, KdeSharded)
        size, unit = channel.heads.size, 1.0 / math.sqrt(channel.heads.size)
        vectors = torch.full((250, size), 0.9 * unit)
        found, _ = channel.publish(vectors, 0.2, 1.0, Stream.from_seed(1))
        grid = np.linspace(-1.5 * unit, 1.5 * unit, 64)
        assert np.abs(found[:, None] - grid).min(1).max() < 1e-12
        assert abs(found.mean() / unit - 0.9) < 0.3
