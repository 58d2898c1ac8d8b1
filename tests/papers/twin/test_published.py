"""`twin`/`published`: what of the contract a claim can keep, what it says of itself, and what is refused."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import pytest
import torch
from torch import Tensor, nn

from airlock import data, pipeline
from airlock.data import Facts, Split
from airlock.errors import ConfigError, Interrupted, Refused, TrainingError
from airlock.mechanisms import Stream
from airlock.mechanisms.density import DensityMechanism, published_sensitivity, silverman
from airlock.papers.twin import published
from airlock.papers.twin.generate import DensitySettings, draw, generate
from airlock.papers.twin.groups import count_selected, layers
from airlock.papers.twin.published import Published
from airlock.testing import ClaimContract
from airlock.training import Run
from airlock.training.ensembles.checkpoint_store import Slices

MNIST = Facts("mnist", (1, 28, 28), tuple("0123456789"), 60000, 10000, "x")


class TestPublished(ClaimContract):
    channel, method = "twin", "published"
    settings: ClassVar[dict[str, Any]] = {"models": 3, "epochs": 0.1}
    shares: ClassVar[dict[str, float]] = {}  # a tenth of an epoch of fewer records would be no step at all

    # A claim promises nothing, so the contract's tests of ε are kept for the claim and against the promise.

    def test_a_smaller_epsilon_means_a_smaller_epsilon(self) -> None:
        less, more = (self.build(epsilon=e).plan() for e in (0.5, self.epsilon))
        assert less.guarantee.claim.epsilon == 0.5  # type: ignore[union-attr]
        for figure in ("epsilon_per_parameter", "model_level_epsilon"):
            assert less.details[figure] < more.details[figure]  # type: ignore[operator]

    def test_repeated_runs_are_paid_for(self) -> None:
        once, often = (self.build(tuning_runs=runs).plan() for runs in (1, 5))
        figure = "claimed_epsilon_per_parameter"
        assert often.details[figure] == once.details[figure] / 5  # type: ignore[operator]
        assert often.guarantee.events == dpa.SelfComposedDpEvent(dpa.NonPrivateDpEvent(), 5)

    def test_nothing_is_promised_and_the_claim_says_why(self) -> None:
        plan = self.build().plan()
        assert (plan.guarantee.status, plan.guarantee.unit) == ("claimed", "none")
        assert math.isinf(plan.guarantee.epsilon)
        claim = plan.guarantee.claim
        assert claim is not None
        assert (claim.epsilon, claim.delta) == (self.epsilon, self.delta)
        assert "does not hold" in claim.theorem
        assert f"{plan.details['epsilon_per_parameter']:.4g}" in claim.theorem
        assert str(plan.details["record_level"]).startswith("none")
        assert published.NOT_PUBLIC in plan.guarantee.assumptions

    def test_a_public_range_is_kept_and_said(self, split: Split) -> None:
        public = {**self.settings, "range": "public", "radius": 0.02, "bandwidth": 0.01}
        made = self.build(settings=public)
        assert isinstance(made, Published)
        centre = made.centre()
        assert centre is not None
        released = self.release(split, settings=public)
        assert published.NOT_PUBLIC not in released.guarantee.assumptions
        values = torch.cat([p.flatten() for p in released.network.net.parameters()])
        assert float((values - centre).abs().max()) <= 0.02 * (1 - 1 / 512)

    @pytest.mark.parametrize(
        "change",
        [
            {"start": "independent"},
            {"bandwidth": "sheather-jones", "smoothing": 2.0},
            {"sensitivity": "correct", "schedule": "cosine"},
            {"generator": "dp-pgp", "clusters": 2, "draw_epsilon": 0.5},
        ],
    )
    def test_every_setting_gives_a_twin(self, split: Split, change: dict[str, Any]) -> None:
        released = self.release(split, settings={**self.settings, **change})
        assert all(torch.isfinite(p).all() for p in released.network.net.parameters())

    def test_dp_pgp_with_nothing_significant_is_dp_pg_exactly(self, split: Split) -> None:
        plain = self.release(split)
        none = self.release(split, settings={**self.settings, "generator": "dp-pgp", "significant": 0.0})
        pairs = zip(plain.network.net.parameters(), none.network.net.parameters(), strict=True)
        assert all(torch.equal(p, q) for p, q in pairs)

    def test_dp_pgp_publishes_the_significant_parameters_by_clusters(self, split: Split) -> None:
        groups = {**self.settings, "generator": "dp-pgp", "clusters": 2}
        plain, grouped = self.release(split), self.release(split, settings=groups)
        one, other = (torch.cat([p.flatten() for p in r.network.net.parameters()]) for r in (plain, grouped))
        changed = int((one != other).sum())
        places = layers(plain.network.net)
        assert changed == sum(count_selected(len(own), 0.2) for own in places)
        assert grouped.plan.details["claimed_cluster_epsilon"] == self.epsilon / 5
        assert str(grouped.plan.details["model_level_epsilon"]).startswith("none")
        assert published.NOT_SELECTED in grouped.guarantee.assumptions
        assert "Corollary 4" in grouped.guarantee.claim.theorem  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"significant": 1.2}, "significant"),
            ({"significant": -0.1}, "significant"),
            ({"clusters": 100_000}, "one per cluster"),
            ({"cluster_epsilon": 2.0, "residual_epsilon": 2.0}, "up to epsilon"),
            ({"align": True, "range": "public"}, "aligned"),
            ({"draw_epsilon": 9.0}, "draw_epsilon up to epsilon"),
            ({"generator": "dp-pg", "draw_epsilon": 0.5}, "with dp-pgp"),
            ({"bandwidth": 0.1, "smoothing": 2.0}, "a rule as bandwidth"),
            ({"common_epochs": 1.0, "range": "public"}, "common_epochs"),
            ({"common_epochs": 1.0, "start": "independent"}, "common_epochs"),
        ],
    )
    def test_bad_groups_are_refused_before_training(self, change: dict[str, Any], word: str) -> None:
        with pytest.raises(ConfigError, match=word):
            self.build(settings={**self.settings, "generator": "dp-pgp", **change}).plan()

    def test_alignment_makes_twins_of_models_that_start_apart(self) -> None:
        """By 0.1 to 0.4, depending on who is private and how the models start."""
        apart, split = {"models": 6, "epochs": 8, "start": "independent"}, data.load(self.config(seed=1))
        found = [self.release(split, seed=1, settings=apart | {"align": aligned}) for aligned in (False, True)]
        assert found[1].utility.accuracy > found[0].utility.accuracy + 0.15
        assert published.NOT_ALIGNED in found[1].guarantee.assumptions

    def test_tries_are_counted_and_each_has_its_own_noise(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Tensor] = []

        def correct(net: nn.Module, records: object) -> int:
            seen.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
            return len(split.test) if len(seen) >= 3 else 0

        monkeypatch.setattr(published, "count_correct", correct)
        released = self.release(split, settings={**self.settings, "threshold": 0.5, "tries": 5})
        assert released.inside["tries"] == 3
        assert released.plan.details["most_tries"] == 5
        assert not torch.equal(seen[0], seen[1])
        assert not torch.equal(seen[1], seen[2])
        assert published.JUDGED_ON_TEST in released.guarantee.assumptions

    def test_every_try_that_may_happen_is_in_the_figure_for_one_model(self) -> None:
        one, five = (
            self.build(settings={**self.settings, **change}).plan() for change in ({}, {"threshold": 0.5, "tries": 5})
        )
        assert five.details["model_level_rho"] == pytest.approx(5 * float(one.details["model_level_rho"]))

    def test_no_twin_that_is_good_enough_is_a_refusal(self, split: Split) -> None:
        with pytest.raises(Refused, match="none in 2"):
            self.release(split, settings={**self.settings, "threshold": 0.999, "tries": 2})

    def test_public_records_judge_where_there_are_some(self, split: Split) -> None:
        judged = {**self.settings, "threshold": 0.01, "judged_on": "public"}
        with pytest.raises(ConfigError, match=r"split\.public"):
            self.build(settings=judged)
        made = self.build(settings=judged, split={"public": 0.1})
        assert published.JUDGED_ON_TEST not in made.plan().guarantee.assumptions

    @pytest.mark.parametrize(
        ("change", "named"), [({"settings": {"models": 1}}, r"settings\.models"), ({"epsilon": 0.0}, "epsilon")]
    )
    def test_one_model_and_no_budget_are_refused(self, change: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            self.build(**change)

    def test_models_that_diverged_are_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        wild = self.config(settings={**self.settings, "epochs": 2, "learning_rate": 1e30})
        with pytest.raises(TrainingError, match="finite parameters"):
            pipeline.make_release(wild, tmp_path / "out", accept_unproven=True, vault=tmp_path / "vault")
        assert not (tmp_path / "out").exists()

    def test_smoothing_draws_nearer_to_the_middle(self) -> None:
        """A wide kernel has its peak at the mean of a slice, a narrow one at one of the models."""
        rows = torch.randn(50, 400, generator=torch.Generator().manual_seed(1))
        far = []
        for smoothing in (0.1, 6.0):
            drawn, _ = draw(
                rows,
                DensitySettings(smoothing=smoothing),
                DensityMechanism(1.0, published_sensitivity(50)),
                torch.zeros(400),
                Stream.from_seed(0),
            )
            far.append(float((drawn - rows.mean(0)).square().mean()))
        assert far[1] < far[0] / 4

    def test_models_with_a_common_start_differ_less(self, split: Split, tmp_path: Path) -> None:
        def spread(name: str, **more: Any) -> float:
            channel = self.build(settings={**self.settings, **more})
            assert isinstance(channel, Published)
            found = channel.collection(split, Run(), tmp_path / name).at()
            return float(torch.cat([block for _, block in found.blocks()], 1).std(0).mean())

        assert spread("a", common_epochs=3.0, epochs=1.0) < spread("b", epochs=4.0)
        assert (tmp_path / "a-start/start.safetensors").stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("common", [0.0, 1.0])
    def test_a_release_leaves_no_collection_behind_and_resumes_to_the_same_twin(
        self, tmp_path: Path, common: float
    ) -> None:
        def press(label: str, done: int, total: int) -> None:
            if done >= 3 and label == "training the collection":
                os.kill(os.getpid(), signal.SIGINT)

        def make(name: str, **more: Any) -> dict[str, bytes]:
            pipeline.make_release(
                self.config(settings={**self.settings, "common_epochs": common}),
                tmp_path / name,
                accept_unproven=True,
                vault=tmp_path / f"v-{name}",
                insecure_seed=1,
                **more,
            )
            return {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}

        whole = make("a")
        with pytest.raises(Interrupted):
            make("b", progress=press)
        assert not (tmp_path / "b").exists()
        resumed = make("b", resume=True)
        assert resumed["model.safetensors"] == whole["model.safetensors"]
        assert not list((tmp_path / "v-b/checkpoints").glob("*"))
        with pytest.raises(Refused, match="accept-unproven"):
            pipeline.make_release(self.config(), tmp_path / "c")


def test_the_papers_setting_costs_18_a_parameter_and_millions_a_model() -> None:
    config = TestPublished.config(epsilon=1.0, delta=1e-5, net="mnist-net", settings={})
    plan = Published(config, MNIST).plan()
    assert plan.details["parameters"] == 1_199_882
    assert plan.details["models"] == 50
    assert plan.details["epsilon_per_parameter"] == pytest.approx(18.763, abs=0.001)
    assert plan.details["model_level_rho"] == pytest.approx(1_199_882 * 18.763**2 / 8, rel=1e-4)
    assert plan.details["model_level_epsilon"] == pytest.approx(2.251e7, rel=1e-3)  # N·ε is less than by zCDP


@pytest.mark.parametrize(("parameters", "exact"), [(10, 2.76), (100, 12.7), (1000, 61.8)])
def test_the_figure_for_one_model_is_an_upper_bound(parameters: int, exact: float) -> None:
    """Of what the worst pair of collections costs with the right sensitivity and a public grid."""
    config = TestPublished.config(epsilon=1.0, delta=1e-5, settings={"models": 50, "sensitivity": "correct"})
    rho, bound = Published(config, MNIST)._model_level(parameters)
    assert rho == pytest.approx(parameters / 8, rel=1e-5)
    assert exact < bound <= parameters * (1 + 1e-6)


def collection(rows: Tensor) -> Slices:
    return Slices(nn.Linear(rows.shape[1] - 1, 1), [rows])


def test_constant_slices_are_refused_or_kept_as_they_are_and_counted() -> None:
    rows = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    rows[:, 3:5] = torch.tensor([0.25, -7.0])
    mechanism, keep, cpu = DensityMechanism(1.0, 1 / 30), DensitySettings(constant="keep"), torch.device("cpu")
    with pytest.raises(TrainingError, match="differ between the models"):
        generate(collection(rows), DensitySettings(), mechanism, None, Stream.from_seed(0), cpu)
    made = generate(collection(rows), keep, mechanism, None, Stream.from_seed(0), cpu)
    assert made.constant == 2
    assert made.values[3:5].tolist() == [0.25, -7.0]
    reach = silverman(rows)
    assert bool(((made.values >= rows.amin(0) - reach) & (made.values <= rows.amax(0) + reach)).all())
    assert len(torch.unique(torch.cat([rows[:, :3], made.values[None, :3]]), dim=0)) == 7  # drawn, not copied


def test_models_that_are_all_the_same_are_refused_or_kept() -> None:
    """As where there is one private record, or none: what is asked for decides, not how many there are."""
    rows, mechanism, cpu = torch.ones(4, 5), DensityMechanism(1.0, 0.1), torch.device("cpu")
    with pytest.raises(TrainingError, match="differ between the models"):
        generate(collection(rows), DensitySettings(), mechanism, None, Stream.from_seed(0), cpu)
    made = generate(collection(rows), DensitySettings(constant="keep"), mechanism, None, Stream.from_seed(0), cpu)
    assert made.constant == 5
    assert made.values.tolist() == [1.0] * 5


def test_a_public_bandwidth_and_range_treat_constant_slices_as_all_others() -> None:
    rows = torch.zeros(4, 2000)
    settings = DensitySettings(bandwidth=0.1, range="public", radius=1.0)
    drawn, constant = draw(rows, settings, DensityMechanism(1.0, 1 / 12), torch.zeros(2000), Stream.from_seed(0))
    assert constant == 0
    assert float(drawn.std()) > 0.1
    assert float(drawn.abs().max()) < 1.0
