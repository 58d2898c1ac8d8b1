"""Frozen public front ends by name: sized for a plan, and filled with public tensors for a release.

A front end's tensors come from a seed, from a wheel, or from public images: a trunk trained on them, and a whitening by
their features' covariance. Nothing here sees a private record. A user's own front end is tested: it must return finite
vectors, and one record's must not change with the others in its batch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from airlock.config import MINILM
from airlock.data import Facts, Public, Records
from airlock.data.text import minilm_folder
from airlock.errors import ConfigError, NetError
from airlock.nets import bert, build_front
from airlock.nets.backbones import ResidualTrunk, efficientnet, efficientnet_linear, trained_name
from airlock.nets.bert import at_once
from airlock.nets.check import alone
from airlock.nets.domain import by_length
from airlock.nets.frontend import Framed, Mirrored, Unit, pretrain, whiten, whitened, whitening
from airlock.nets.registry import open_user_net
from airlock.nets.scattering import SMALLEST, by_matrices
from airlock.nets.tables import ColumnLayout, lay_out, steps_linear
from airlock.training.devices import to_input
from airlock.training.front_ends.pretrain import FROM_SCRATCH, TRAIN_ON, pretrained
from airlock.training.front_ends.public import SYNTHETIC, FrontSettings, moments
from airlock.training.loop import Run

Shape = tuple[int, ...]

PRETRAINED, TRAINED, STEPS = "efficientnet-lite0", "trained", "steps"
_BATCH = 250  # records at a time
_BUILT_IN = ("scattering", "pixels", STEPS, TRAINED, MINILM)


@dataclass(frozen=True)
class FrontEnd:
    """One front end with a head for records of one shape.

    Args:
        features: scattering, pixels, steps, trained, efficientnet-lite0, minilm or `package.module:function`.
        shape: The shape of one record.
        classes: The number of classes.
        seed: The seed of the random projection and the synthetic images; public.
        settings: What public images are used for.
        layout: Of a table's columns, for steps.
    """

    features: str
    shape: Shape
    classes: int
    seed: int
    settings: FrontSettings
    layout: ColumnLayout | None = None

    @property
    def white(self) -> bool:
        """Whether public images whiten the features."""
        return self.settings.public is not None and self.settings.whitening != "none"

    @property
    def name(self) -> str:
        """The name of the whole network."""
        if ":" in self.features:
            return self.features
        if self.layout is not None:
            return self.layout.name
        front = trained_name(self.settings.width, self.mirror) if self.features == TRAINED else self.features
        return f"{front}-white-linear" if self.white else f"{front}-linear"

    @property
    def mirror(self) -> bool:
        """Whether features are averaged over an image and its mirror image."""
        learnt = self.features in (PRETRAINED, TRAINED)
        return learnt if self.settings.mirror is None else self.settings.mirror

    @property
    def tuned(self) -> bool:
        """Whether a pre-trained front end is fine-tuned on the public images."""
        public = self.settings.public
        useful = self.features == PRETRAINED and public is not None and public.source != SYNTHETIC
        return useful if self.settings.tune is None else self.settings.tune

    def sized(self) -> Framed:
        """The network before any public tensors are computed for it."""
        net = self._plain()
        return whitened(net) if self.white else net

    def ready(self, public: Public | None, run: Run) -> Framed:
        """The network with all public tensors in place, on the run's device; its head is still zero."""
        net = self._plain()
        with_weights(net, self.features, self.shape, self.seed)
        if self.features == TRAINED or self.tuned:
            assert public is not None
            self._train(net, public, run)
        if not self.white:
            return net.to(run.device)
        assert public is not None
        settings = self.settings
        mean, covariance = moments(net.to(run.device).front, public, settings.whitening == "within", run)
        net = whitened(net).to(run.device)
        whiten(net, *whitening(mean, covariance, settings.whitening_power, settings.whitening_damping))
        return net

    def _plain(self) -> Framed:
        if self.features == PRETRAINED:
            return efficientnet_linear(self.shape, self.classes, self.mirror)
        if ":" in self.features:
            return _user(self.features, self.shape, self.classes)
        if self.layout is not None:
            return steps_linear(self.layout, self.classes)
        front = trained_name(self.settings.width, self.mirror) if self.features == TRAINED else self.features
        return build_front(f"{front}-linear", self.shape, self.classes)

    def _train(self, net: Framed, public: Public, run: Run) -> None:
        """Train the network's trunk on public images."""
        width, seed = self.settings.width, self.settings.front_seed
        how = TRAIN_ON if self.tuned else FROM_SCRATCH
        how = how.model_copy(update={"mirror": self.mirror, "epochs": self.settings.epochs or how.epochs})
        if self.tuned:
            trunk = pretrained(PRETRAINED, efficientnet, public, how, seed, run)
        else:
            trunk = pretrained(f"residual-{width}", lambda: ResidualTrunk(self.shape[0], width), public, how, seed, run)
        assert isinstance(net.front, nn.Sequential)
        body = net.front[0]
        (body.body if isinstance(body, Mirrored) else body).load_state_dict(trunk.state_dict())


def with_weights(net: Framed, features: str, shape: Shape, seed: int) -> None:
    """Put in what a front end has without public images: a projection by its seed, or an encoder's weights."""
    if features == "scattering":
        pretrain(net, shape, seed)
    elif features == MINILM:
        bert.fill(net, minilm_folder())


def by_facts(facts: Facts) -> str:
    """The front end for data of this kind: steps for tables, MiniLM for texts, scattering for images of its sizes."""
    if facts.columns:
        return STEPS
    if facts.vocabulary is not None:
        return MINILM
    return "scattering" if len(facts.shape) == 3 and min(facts.shape[1:]) >= SMALLEST else "pixels"


def check_texts(features: str, facts: Facts) -> None:
    """Refuse a front end of texts for other data, and one of other data for texts.

    Raises:
        ConfigError: It does not read the numbers that these records are.
    """
    texts = facts.vocabulary is not None
    if ":" in features or (not texts and features != MINILM):
        return
    if features != MINILM or not texts:
        raise ConfigError(
            f'features = "{MINILM}" for texts, and for nothing else',
            f"'{features}' for {'texts' if texts else 'other records'}",
            "The numbers of a text are names of tokens, which mean nothing to other front ends.",
            "Leave settings.features out.",
        )
    if facts.vocabulary != bert.MINILM.tokens + 1:
        raise ConfigError(
            f"the tokenizer of MiniLM-L6 for features = '{MINILM}'",
            f"one of {(facts.vocabulary or 1) - 1:,} tokens, not {bert.MINILM.tokens:,}",
            "An encoder knows the tokens of its own tokenizer alone.",
            "Leave data.tokenizer out, or give your own front end as package.module:function.",
        )


def layout_of(features: str, facts: Facts, products: bool) -> ColumnLayout | None:
    """The layout of a table's columns for steps; None for other front ends.

    Raises:
        ConfigError: The data are no table with declared columns.
    """
    if features != STEPS:
        return None
    if not facts.columns:
        raise ConfigError(
            'a table with declared columns for features = "steps"',
            "other data",
            "A number is compared with cut points in its declared range.",
            "Leave settings.features out, or declare data.columns of a CSV or Parquet file.",
        )
    return lay_out([column for _, column in facts.columns], products)


def front_end(features: str, facts: Facts, seed: int, settings: FrontSettings, products: bool = False) -> FrontEnd:
    """The front end of this name; "auto" chooses by public facts.

    Args:
        features: Its name.
        facts: What is public about the data.
        seed: Public.
        settings: What public images are used for.
        products: Whether steps use pairs of columns too.

    Raises:
        NetError: There is no front end of this name.
        ConfigError: It does not suit these data.
    """
    if features == "auto":
        features = by_facts(facts)
    if features not in (*_BUILT_IN, PRETRAINED) and ":" not in features:
        known = ", ".join((*_BUILT_IN, PRETRAINED))
        raise NetError(
            f"features of a known kind ({known})", f"'{features}'", do="Or give your own as package.module:function."
        )
    check_texts(features, facts)
    layout = layout_of(features, facts, products)
    if layout is not None and settings.public is not None:
        raise ConfigError(
            'no settings.public with features = "steps"',
            "one",
            "Public images are for front ends of images.",
            "Leave it out.",
        )
    return FrontEnd(features, facts.shape, facts.outputs, seed, settings, layout)


def front_of(net: Framed, device: torch.device, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Front end and constant, of this precision; on a CPU, wavelets of small images are applied by matrices."""
    body = copy.deepcopy(nn.Sequential(net.front, net.centre)).to(device, dtype).eval()
    return by_matrices(body) if device.type == "cpu" else body


def embed(net: Framed, records: Records, run: Run) -> Tensor:
    """Features with their constant, in float64, in blocks of one size whatever the number of records."""
    body = front_of(net, run.device)
    found = torch.empty(len(records), net.head.in_features, dtype=torch.float64, device=run.device)
    done, size = 0, at_once(body) or _BATCH
    for rows, whole in by_length(body, torch.from_numpy(np.ascontiguousarray(records.x))):
        places = torch.arange(len(whole)) if rows is None else rows
        for part, where in zip(torch.split(whole, size), torch.split(places, size), strict=True):
            block = part.new_zeros(size, *part.shape[1:])
            block[: len(part)] = part
            with torch.no_grad():
                found[where.to(run.device)] = body(to_input(block.to(run.device)).double())[: len(part)]
            done += len(part)
            if run.progress:
                run.progress("features", done, len(records))
    return found


def _user(features: str, shape: Shape, classes: int) -> Framed:
    """The user's module, flattened and scaled to norm 1, with a head."""
    body = open_user_net(features, shape, classes).requires_grad_(False).eval()
    front = nn.Sequential(body, nn.Flatten(), Unit())
    return Framed(front, alone(body, features, shape).numel(), classes)
