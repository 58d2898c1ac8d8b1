"""Everybody who turns features back into pictures, learnt once on the records that they know.

Three of four known records are learnt from, every fourth one chooses: how smooth pictures should be, and how far each
attacker is trusted beyond the blind guess. So no attacker is much worse than that guess, as none would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from airlock.auditing.attacks.invert import InvertSettings, Tuned, invert, tune
from airlock.auditing.attacks.linear import Linear, learn_linear
from airlock.auditing.attacks.reconstruct import Attacker, ReconstructSettings, dense, learn_net
from airlock.auditing.features.feature_pipeline import Pairs, Passage, generator_on
from airlock.auditing.features.prior_baseline import Blind, best_blind, trust
from airlock.auditing.result import View
from airlock.nets.privynet import Irn
from airlock.training import Run


@dataclass(frozen=True)
class Attackers:
    """Learnt from known records; `make` uses them on others.

    Args:
        passage: What features went through.
        blind: The best guess without features.
        linear: The best linear guess.
        tuned: What inversion was tuned to.
        settings: How hard it looks.
        net: The trained net; None where none was trained.
        net_trust: How far its pictures are trusted.
        seed: Of random starts.
        run: Device and progress.
    """

    passage: Passage
    blind: Blind
    linear: Linear
    tuned: Tuned
    settings: InvertSettings
    net: Attacker | None
    net_trust: float
    seed: int
    run: Run

    @classmethod
    def learn(
        cls, passage: Passage, known: Pairs, seed: int, run: Run, settings: InvertSettings,
        net_settings: ReconstructSettings | None,
    ) -> Self:  # fmt: skip
        """Learn everybody; without settings of a net none is trained."""
        learn, choose = known.halves()
        blind, early = best_blind(known), best_blind(learn)
        noisy = passage.noisy(choose.clean, generator_on(choose.clean.device, seed))
        guess, net, far = early(choose.y), None, 1.0
        starts = [learn_linear(passage, learn, early, seed)(noisy, choose.y), guess]
        tuned = tune(passage, choose, starts, guess, noisy, seed, settings)
        if net_settings is not None:
            make = Irn if known.clean.dim() == 4 else dense
            net = learn_net(passage, learn, seed, run, net_settings, make)
            far = trust(guess, net(noisy), choose.x)
        return cls(passage, blind, learn_linear(passage, known, blind, seed), tuned, settings, net, far, seed, run)

    def make(self, features: Tensor, y: Tensor) -> dict[tuple[str, View], Tensor]:
        """Everybody's pictures of these features, by name and by what the attacker has."""
        guess = self.blind(y)
        linear = self.linear(features, y)
        found: dict[tuple[str, View], Tensor] = {("best linear guess", "features"): linear}
        if self.net is not None:
            found["reconstruction net", "features"] = guess + self.net_trust * (self.net(features) - guess)
        starts = [linear, guess]
        inverted = invert(self.passage, features, starts, guess, self.tuned, self.seed, self.run, self.settings)
        return found | {("inversion", "front"): inverted}
