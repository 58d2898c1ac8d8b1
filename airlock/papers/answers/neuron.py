"""Algorithm 1 of Lu et al. 2021: noise on one output neuron of a network that stays inside, drawn anew for every query.

A neuron v is picked with probability ∝ exp(ε_s p_v / 2Δp), its logit gets noise of scale Δz/ε_n (Laplace, or Gaussian
with that standard deviation), and softmax is applied again.

Guarantee: none with three classes or more. The logits without noise are revealed up to a common shift, ln p_u/p_w =
z_u − z_w for all u and w other than v, so two networks are told apart by one answer as soon as they differ. With two
classes only z_0 − z_1 is revealed, with noise of this scale whichever neuron was picked: with Laplace noise that is
D ε_n/Δz-DP if one record moves z_0 − z_1 by at most D. Were D = 2Δz, as the paper assumes, it would be 2ε_n; the
paper's Δz is not a bound.

Noise is continuous, as in the paper, from the operating system's randomness unless a seed was asked for. Its low-order
bits are not protected either (Mironov 2012); as there is no guarantee, none is lost by that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from airlock.errors import FormatError, Refused
from airlock.mechanisms import Stream
from airlock.methods.contract import Secrets
from airlock.methods.interface import Answerer, Answers, Figures, Interface, Reservation

Noise = Literal["laplace", "gaussian"]
Floats = NDArray[np.float64]

NETWORK = "network"  # the vault's name for the weights
_LAYERS = ("1.weight", "1.bias", "3.weight", "3.bias")  # of nets.classifiers.mlp
_BLOCK = 1000  # queries at a time


@dataclass(frozen=True)
class NeuronNoise:
    """Steps 8 to 12 of the algorithm.

    Args:
        kind: Of the noise.
        logit_sensitivity: Δz, as the paper states it.
        probability_sensitivity: Δp, likewise.
        epsilon: ε_s = ε_n, the share of a query's ε for picking a neuron, and again for the noise on it.
    """

    kind: Noise
    logit_sensitivity: float
    probability_sensitivity: float
    epsilon: float

    @property
    def scale(self) -> float:
        """Of the noise on the picked logit."""
        return self.logit_sensitivity / self.epsilon

    def chances(self, logits: Floats) -> Floats:
        """The probability with which each neuron of each row is picked."""
        return softmax(self.epsilon * softmax(logits) / (2 * self.probability_sensitivity))

    def perturb(self, logits: Floats, stream: Stream) -> Floats:
        """Noisy probabilities, one row per query; each row has its own neuron and its own noise."""
        rows = np.arange(len(logits))
        reached = np.cumsum(self.chances(logits), 1) < stream.child("neuron").uniform(len(rows))[:, None]
        picked = np.minimum(reached.sum(1), logits.shape[1] - 1)
        noisy = logits.copy()
        noisy[rows, picked] += self.scale * self.draw(len(rows), stream.child("noise"))
        return softmax(noisy)

    def draw(self, count: int, stream: Stream) -> Floats:
        """Noise of scale 1."""
        if self.kind == "gaussian":
            return stream.normal(count)
        stream.note_drawn("cpu")
        chance = stream.uniform(count)
        return np.where(chance < 0.5, np.log(2 * chance), -np.log(2 * (1 - chance)))

    @property
    def figures(self) -> Figures:
        """What an interface has to state."""
        return {
            "noise": self.kind,
            "logit_sensitivity": self.logit_sensitivity,
            "probability_sensitivity": self.probability_sensitivity,
            "neuron_epsilon": self.epsilon,
        }

    @classmethod
    def read(cls, figures: Figures) -> NeuronNoise:
        """From an interface's figures.

        Raises:
            FormatError: They are not all there.
        """
        try:
            kind = figures["noise"]
            dz, dp, epsilon = (
                float(figures[k]) for k in ("logit_sensitivity", "probability_sensitivity", "neuron_epsilon")
            )
        except (KeyError, ValueError) as error:
            raise FormatError("the figures of answers/published in the interface", "others") from error
        if kind not in ("laplace", "gaussian") or not (dz > 0 and 0 < dp <= 1 and epsilon > 0):
            raise FormatError("the figures of answers/published in the interface", "figures outside their range")
        return cls("laplace" if kind == "laplace" else "gaussian", dz, dp, epsilon)


def softmax(logits: Floats) -> Floats:
    """Along rows, in float64, without overflow."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    found: Floats = powers / powers.sum(1, keepdims=True)
    return found


def keep(net: nn.Module) -> Secrets:
    """The network as arrays for the vault."""
    return {NETWORK: {name: value.detach().cpu().numpy().copy() for name, value in net.state_dict().items()}}


class NeuronAnswerer(Answerer):
    """Answers from the private network, each with noise on one neuron; it keeps no state between calls.

    Args:
        interface: With the figures of the noise.
        kept: The vault's arrays: the network's weights.
    """

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface)
        self.noise = NeuronNoise.read(interface.figures)
        weights = kept.get(NETWORK, {})
        if any(name not in weights for name in _LAYERS):
            raise FormatError("the weights of answers/published in the vault", "others")
        self._layers = [np.asarray(weights[name], np.float64) for name in _LAYERS]

    def logits(self, x: NDArray[np.float32]) -> Floats:
        """Without noise: they must not leave."""
        first, bias, last, shift = self._layers
        blocks = [x[i : i + _BLOCK].reshape(-1, first.shape[1]).astype(np.float64) for i in range(0, len(x), _BLOCK)]
        return np.concatenate([np.tanh(block @ first.T + bias) @ last.T + shift for block in blocks])

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        """Noisy probabilities and the most probable class."""
        if len(x) != reservation.rows:
            raise Refused(
                f"{reservation.rows} queries, as reserved", f"{len(x)}", "Answers that were not paid for would leave."
            )
        if not len(x):
            return Answers(np.empty(0, np.int64), np.empty((0, len(self.interface.classes))))
        values = self.noise.perturb(self.logits(x), stream)
        return Answers(values.argmax(1).astype(np.int64), values)
