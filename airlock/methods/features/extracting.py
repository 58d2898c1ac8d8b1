"""What all methods of `features` share: sending records through a front end into shards, and measuring utility.

Rows are written in a secret random order, so that a row's position reveals nothing about that of its record.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import weakref
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from airlock.config import DataConfig, ReleaseConfig, parse
from airlock.data import Facts, Records
from airlock.data.feature_files import Layout, Manifest, load, make_manifest
from airlock.errors import ConfigError
from airlock.mechanisms import LocalGaussian, Stream
from airlock.methods.artefact import ArtefactKind, FeatureSet
from airlock.methods.contract import Channel, Secrets
from airlock.methods.features.front import FeatureFrontEnd, FeatureSettings, Kept, check_settings, outside
from airlock.methods.rows import Whole
from airlock.training import Run
from airlock.training.distributed import digest
from airlock.training.front_ends.downstream_classifier import learn
from airlock.training.front_ends.extract import Extraction, Ordered, Protect, extract, feature_shape
from airlock.training.front_ends.features import compute
from airlock.training.outcomes import Outcomes, outcomes_of

FOLDER = "features"  # of a run's checkpoints
MOST_BYTES = 1 << 30  # of features that the classifier learns from


class Extracting(Channel):
    """Features of every private record; a subclass says what is done to them before they are written."""

    channel: ClassVar[str] = "features"
    artefact: ClassVar[ArtefactKind] = "features"
    settings_type: ClassVar[type[FeatureSettings]] = FeatureSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = parse(self.settings_type, config.settings, where="settings")
        if config.net != "auto":
            raise ConfigError("no `net` for features", f"'{config.net}'", do="Name the front end in settings.front.")
        check_settings(self.settings, facts, config.split.public)
        self.public = outside(self.source)
        self.front_end = self.opened()

    @classmethod
    def kept_front_end(cls, kept: Secrets) -> Kept:
        """The front end of a release, from what stayed in the vault."""
        return Kept.read(kept, cls.settings_type)

    @property
    def source(self) -> DataConfig | None:
        """The public set that is used, if any."""
        return self.settings.pretrain_on

    @abstractmethod
    def opened(self) -> FeatureFrontEnd:
        """The front end that the settings describe; refused if it does not fit the records."""

    def layout(self, front: nn.Module) -> Layout:
        """Of the files."""
        return Layout(feature_shape(front, self.facts.shape), self.settings.format, self.settings.precision)

    def written(
        self,
        front: nn.Module,
        records: Records,
        order: Whole,
        run: Run,
        protect: Protect | None = None,
        noise: float | None = None,
        stream: Stream | None = None,
    ) -> tuple[Path, Manifest]:
        """Write all private records' features in shards, to the checkpoint folder or to a temporary one.

        Args:
            front: From records to features.
            records: The private ones.
            order: In which they are written; NOBODY for a row without a record.
            run: Device, progress, folder, workers.
            protect: What is done to them first.
            noise: The standard deviation of its noise, for the manifest.
            stream: Its randomness.
        """
        folder = run.checkpoint / FOLDER if run.checkpoint else Path(tempfile.mkdtemp(prefix="airlock-"))
        layout = self.layout(front)
        mark = self._mark(front, records, order, layout, noise)
        how = Extraction(run.workers, run.engine)
        source = Ordered(records, order)
        shards = extract(front, source, layout, folder, run, mark=mark, protect=protect, stream=stream, how=how)
        return folder, make_manifest(layout, self.facts.classes, noise, shards)

    def _mark(self, front: nn.Module, records: Records, order: Whole, layout: Layout, noise: float | None) -> str:
        """Identifies everything that a row depends on, apart from its noise."""
        arrays = [torch.from_numpy(np.ascontiguousarray(array)) for array in (records.x, records.y, order)]
        known = json.dumps([self.method, self.settings.model_dump(mode="json"), vars(layout), noise, self.config.seed])
        return hashlib.sha256(digest([*arrays, *front.state_dict().values()]) + known.encode()).hexdigest()

    def usefulness(
        self, front: nn.Module, clip: LocalGaussian | None, folder: Path, manifest: Manifest, test: Records, run: Run
    ) -> Outcomes:
        """The outcomes on the test records of a classifier trained on the released features alone.

        Test records go through the same front end and clipping, without noise: as if the recipient sent the classifier
        back to be used inside.
        """
        known = load(folder, manifest, MOST_BYTES)
        alone = Run(device=run.device, progress=run.progress)
        net = learn(known, len(manifest.classes), manifest.noise, self.settings.epochs, self.config.seed, alone)
        blocks = [x.cpu() for _, x in compute(front, test, run, "features of test records")]
        features = torch.cat([torch.empty(0, *manifest.shape), *blocks])
        features = clip.clip(features).reshape(features.shape) if clip else features
        return outcomes_of(net, Records(features.numpy(), test.y))

    def owned(self, features: FeatureSet, run: Run) -> FeatureSet:
        """A temporary folder is removed once the features are garbage-collected."""
        if run.checkpoint is None:
            weakref.finalize(features, shutil.rmtree, features.folder, ignore_errors=True)
        return features
