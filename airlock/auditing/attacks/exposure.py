"""Exposure and extraction of canary sentences: how far a language model prefers what it was trained on.

In: the method of a release, and its private records. A canary is a made-up text: a beginning that anyone may know, and
a secret filling of tokens drawn at random. The method is run once more, as it was configured and with its noise, on the
private records and all canaries; the network that leaves never saw one. Each canary is then ranked by its loss among
other fillings of its beginning, drawn in the same way. Out: log2(fillings and the canary) − log2(rank) for each: its
exposure (Carlini et al. 2019), in bits.

Without the canary the model cannot tell its filling from the others, which were drawn like it: its rank is then uniform
from 1 to their number, and the mean exposure is `chance`. The number of bits that can be shown is limited by the number
of fillings; that of all possible fillings, which a true secret may have more of, is not extrapolated.

Extraction is the blunter question (Carlini et al. 2021): given a canary's beginning, does the model say its filling,
the likeliest token at every place? It is counted how many canaries come out whole, and which share of their tokens
does, beside as many sentences, drawn in the same way, that the model never saw.

Canaries are added to the training records of a model that is trained for this attack alone and then forgotten, never to
those of a release. They weigh as so many more people, or records, in an audit that stays inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import nn

from airlock.auditing.attacks.signals import ask
from airlock.auditing.bounds import Floats
from airlock.auditing.result import ExposureResult
from airlock.data import Records, Split
from airlock.mechanisms import Randomness
from airlock.methods import Channel
from airlock.nets.hugging_face import LanguageModel
from airlock.training import Run
from airlock.training.loop import mix

CONFIDENCE = 0.95

Tokens = NDArray[np.float32]
Losses = Callable[[Records], Floats]


@dataclass(frozen=True)
class Sentences:
    """Made-up sentences with secret fillings.

    Args:
        texts: (sentences, tokens), as numbers.
        secret: How many of the last tokens are the filling.
        vocabulary: Of the texts: 0 is no token.
    """

    texts: Tokens
    secret: int
    vocabulary: int

    @classmethod
    def drawn(cls, count: int, tokens: int, vocabulary: int, seed: int) -> Sentences:
        """As long as a text may be; the second half is secret."""
        chance = np.random.default_rng(seed)
        return cls(chance.integers(1, vocabulary, (count, tokens)).astype(np.float32), tokens // 2, vocabulary)

    def inserted(self, private: Records, copies: int) -> Records:
        """The private records, and each canary so many times; where the unit is a person, as one person's records."""
        again = np.repeat(np.arange(len(self.texts)), copies)
        x = np.concatenate([private.x, self.texts[again].astype(private.x.dtype)])
        y = np.concatenate([private.y, np.zeros(len(again), np.int64)])
        if private.person is None:
            return Records(x, y)
        first = int(private.person.max(initial=-1)) + 1
        return Records(x, y, np.concatenate([private.person, first + again]))

    def others(self, place: int, count: int, seed: int) -> Tokens:
        """Other fillings of one canary's beginning, drawn like its own."""
        chance = np.random.default_rng([seed, place])
        found = np.repeat(self.texts[place : place + 1], count, 0)
        found[:, -self.secret :] = chance.integers(1, self.vocabulary, (count, self.secret))
        return found


def ranks(canaries: Sentences, losses: Losses, fillings: int, seed: int) -> NDArray[np.int64]:
    """The rank of each canary among the fillings, 1 for the one with the smallest loss; ties count against it."""
    found = []
    for place, own in enumerate(canaries.texts):
        rows = np.concatenate([own[None], canaries.others(place, fillings, seed)])
        of = np.nan_to_num(losses(Records(rows, np.zeros(len(rows), np.int64))), nan=np.inf)
        found.append(1 + int((of[1:] <= of[0]).sum()))
    return np.array(found, np.int64)


@dataclass(frozen=True)
class Completed:
    """How a model completes the beginnings of sentences.

    Args:
        whole: How many fillings come out whole.
        share: The mean share of their tokens that comes out.
    """

    whole: int = 0
    share: float = 0.0


@torch.no_grad()
def complete(net: nn.Module, sentences: Sentences) -> Completed:
    """Say the likeliest token at every place of the fillings, each after those that were said before.

    Args:
        net: A language model.
        sentences: Of which it is told the beginnings.
    """
    if not isinstance(net, LanguageModel) or not len(sentences.texts):
        return Completed()
    net.eval()
    texts = torch.from_numpy(sentences.texts).to(next(net.parameters()).device)
    begin, right = texts.shape[1] - sentences.secret, []
    for wanted in torch.split(texts, net.at_once):
        said = wanted.clone()
        said[:, begin:] = 0.0
        for place in range(begin, said.shape[1]):
            likeliest = net.next_token(said)[:, place - 1, : sentences.vocabulary - 1].argmax(1)
            said[:, place] = (likeliest + 1).to(said.dtype)
        right.append((said == wanted)[:, begin:].float().mean(1))
    shares = torch.cat(right)
    return Completed(int((shares == 1).sum()), float(shares.mean()))


def measured(
    found: NDArray[np.int64],
    fillings: int,
    copies: int,
    secret: int,
    said: Completed = Completed(),
    said_of_others: Completed = Completed(),
) -> ExposureResult:
    """The figures of these ranks; intervals are normal approximations over the canaries.

    Args:
        found: The rank of each canary.
        fillings: How many others each was ranked among.
        copies: How often each was in the training records.
        secret: The tokens of a filling.
        said: How the model completes the canaries.
        said_of_others: How it completes as many sentences that it never saw.
    """
    bits = math.log2(fillings + 1) - np.log2(found)
    reach = float(norm.ppf(0.5 + CONFIDENCE / 2)) * float(bits.std(ddof=1)) / math.sqrt(len(bits))
    # Ranks that are all alike say nothing of their spread: then that of a guess stands in for it.
    alone = math.log2(fillings + 1) - np.log2(np.arange(1, fillings + 2))
    reach = reach or float(norm.ppf(0.5 + CONFIDENCE / 2)) * float(alone.std()) / math.sqrt(len(bits))
    most, mean = math.log2(fillings + 1), float(bits.mean())
    return ExposureResult(
        canaries=len(found), copies=copies, fillings=fillings, secret=secret, value=mean,
        low=max(0.0, mean - reach), high=min(most, mean + reach), largest=float(bits.max()),
        chance=float(alone.mean()), most=most, first=int((found == 1).sum()), confidence=CONFIDENCE,
        extracted=said.whole, tokens=said.share, others_extracted=said_of_others.whole,
        others_tokens=said_of_others.share,
    )  # fmt: skip


def exposure(
    channel: Channel, split: Split, count: int, copies: int, fillings: int, seed: int, run: Run
) -> tuple[ExposureResult, NDArray[np.int64]]:
    """Train once more with canaries, and rank them: the figures, and the rank of each, which stays in the vault.

    Args:
        channel: The method, as the release was configured.
        split: The records that the release came from.
        count: How many canaries.
        copies: How often each is in the training records.
        fillings: How many others each is ranked among.
        seed: Of canaries, fillings and initialisation; the noise comes from the operating system.
        run: Device and progress.
    """
    facts = split.facts
    made = Sentences.drawn(count, facts.shape[0], facts.vocabulary or 0, seed)
    own = replace(split, private=made.inserted(split.private, copies))
    network = channel.release(own, Randomness.make(seed), Run(device=run.device, progress=run.progress)).network.net
    device = next(network.parameters()).device
    found = ranks(made, lambda records: ask(network, records, device)[:, 0], fillings, seed)
    others = Sentences.drawn(count, facts.shape[0], facts.vocabulary or 0, mix(seed, 7))
    return measured(found, fillings, copies, made.secret, complete(network, made), complete(network, others)), found
