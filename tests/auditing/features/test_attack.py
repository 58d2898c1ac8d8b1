"""A release of features, attacked whole: what is found, on whose records, and that no private picture leaves."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from torch import nn

from airlock.auditing import required_attacks
from airlock.auditing.attacks.invert import InvertSettings
from airlock.auditing.attacks.reconstruct import ReconstructSettings
from airlock.auditing.features.attack import (
    BESIDE,
    DRAWN,
    NO_NET,
    NO_PICTURES,
    NO_POOL,
    PUBLIC,
    TOO_FEW,
    CandidatePool,
    FeatureAttackSettings,
    attack,
    pictures_to_show,
)
from airlock.auditing.features.feature_pipeline import FeaturePipeline, generator_on, push
from airlock.auditing.result import Audit, Findings
from airlock.config import SplitConfig
from airlock.data import Facts, Records, Split
from airlock.data.split import Public
from airlock.nets.prefix import narrow, open_prefix
from airlock.training import Run
from tests.auditing.attacks.toy_features import CLASSES, CPU, SHAPE, pictures

PARTS = SplitConfig(public=0.05, test=0.25, holdout=0.3)
SMALL = FeatureAttackSettings(
    known=100,
    images=50,
    shown=3,
    net=False,
    attribute_steps=30,
    invert=InvertSettings(steps=15, variation=(0.01,), learning_rate=0.1, restarts=0),
)
CHANNELS = [7, 2, 50, 33]


@pytest.fixture(scope="module")
def split() -> Split:
    records = pictures(600, 5)
    facts = Facts("drawn", SHAPE, tuple("abcd"[:CLASSES]), 600, None, "Drawn pictures.")
    cut = np.split(np.arange(600), [240, 270, 420])
    private, public, test, holdout = (records.take(part) for part in cut)
    return Split(facts, private, public, test, holdout)


@pytest.fixture(scope="module")
def whole() -> nn.Module:
    return open_prefix("vgg16", 3, SHAPE)


def left(pipeline: FeaturePipeline, split: Split) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = push(pipeline, split.private, CPU)
    return [(pipeline.noisy(pairs.clean, generator_on(CPU, 123)).numpy(), pairs.y.numpy())]


@pytest.fixture(scope="module")
def published(split: Split, whole: nn.Module) -> tuple[Audit, dict]:
    pipeline = FeaturePipeline(narrow(whole, CHANNELS))
    pool = CandidatePool({"vgg16, 3": whole, "vgg19, 3": open_prefix("vgg19", 3, SHAPE)}, "vgg16, 3", CHANNELS)
    settings = SMALL.model_copy(update={"net": True, "reconstruct": ReconstructSettings(epochs=2, batch_size=50)})
    audit, secrets = attack(pipeline, left(pipeline, split), split, PARTS, 1e-5, 0, settings, Run(), pool)
    return audit, dict(secrets)


def test_published_features_are_rebuilt_found_and_named(published: tuple[Audit, dict]) -> None:
    audit, _ = published
    found = audit.features
    assert found is not None
    linear, net, inverted = found.reconstructions
    assert [one.view for one in (linear, net, inverted)] == ["features", "features", "front"]
    assert linear.gain_low > 0
    assert {one.images for one in found.reconstructions} == {50}
    assert {one.known for one in found.reconstructions} == {100}
    (looked,) = audit.attacks
    assert looked.value == 1.0
    assert found.found_by_lookup
    named = found.identification
    assert named is not None
    assert named.net_right[-1]
    assert named.right[-1] == named.live[-1] > 0
    assert not {NO_NET, NO_POOL} & set(audit.not_tested)


def test_every_fitting_attack_was_made(published: tuple[Audit, dict]) -> None:
    audit, _ = published
    assert audit.features is not None
    assert required_attacks.missing("features", (*audit.attacks, *audit.features.reconstructions)) == ()
    assert len(required_attacks.missing("features", ()) or ()) == 3


def test_figures_are_plain_rounded_values_without_pictures(published: tuple[Audit, dict]) -> None:
    table = json.loads(json.dumps(published[0].to_dict(), allow_nan=False))
    assert "sheet" not in table
    assert "sheet" not in table["features"]
    one = table["features"]["reconstructions"][0]
    assert one["low"] <= one["psnr"] <= one["high"]
    assert one["psnr"] == round(one["psnr"], 4)


def test_no_private_test_or_holdout_picture_is_on_the_sheet_that_leaves(
    published: tuple[Audit, dict], split: Split
) -> None:
    audit, secrets = published
    shown = audit.sheet
    assert shown is not None
    assert shown.rows == ("original", "best linear guess", "reconstruction net", "inversion")
    assert shown.whose == PUBLIC
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.png))))
    originals = [picture[:8, 10 * i : 10 * i + 8].transpose(2, 0, 1).tobytes() for i in range(3)]
    theirs = {one.tobytes() for part in (split.private, split.test, split.holdout) for one in part.x}
    assert not set(originals) & theirs
    assert set(originals) <= {one.tobytes() for one in split.public.x}
    kept = secrets["contact-sheet"]
    assert {one.tobytes() for one in kept["original"]} <= {one.tobytes() for one in split.private.x}
    assert set(kept) == {"original", "best-linear-guess", "reconstruction-net", "inversion"}


def test_noise_leaves_little_to_find(split: Split, whole: nn.Module) -> None:
    pipeline = FeaturePipeline(narrow(whole, CHANNELS), clip=1.0, sigma=4.0)
    audit, _ = attack(pipeline, left(pipeline, split), split, PARTS, 1e-5, 0, SMALL)
    assert audit.features is not None
    assert audit.attacks[0].low < 0.5 < audit.attacks[0].high
    assert audit.features.found_by_lookup is False
    assert max(one.gain_low for one in audit.features.reconstructions) < 1.0
    assert {NO_NET, NO_POOL} <= set(audit.not_tested)


def test_labels_that_did_not_leave_are_not_used(split: Split, whole: nn.Module) -> None:
    pipeline = FeaturePipeline(narrow(whole, CHANNELS))
    shuffled = [(features, np.roll(y, 1)) for features, y in left(pipeline, split)]
    audit, _ = attack(pipeline, shuffled, split, PARTS, 1e-5, 0, SMALL, labelled=False)
    assert audit.features is not None
    assert audit.attacks[0].value == 1.0
    assert audit.attacks[0].per_class == ()
    assert {one.blind for one in audit.features.reconstructions} <= {"the mean picture", "the best constant picture"}


def test_figures_do_not_depend_on_private_records_except_membership(split: Split, whole: nn.Module) -> None:
    pipeline = FeaturePipeline(narrow(whole, CHANNELS))
    other = replace(split, private=split.private.take(np.arange(239, -1, -1)))
    first, second = (attack(pipeline, left(pipeline, s), s, PARTS, 1e-5, 0, SMALL)[0].features for s in (split, other))
    assert first == second


def test_tables_are_attacked_without_pictures(split: Split) -> None:
    flat = {
        name: Records(
            getattr(split, name).x.reshape(len(getattr(split, name)), -1)[:, :12] / 255, getattr(split, name).y
        )
        for name in ("private", "public", "test", "holdout")
    }
    table = replace(split, facts=replace(split.facts, shape=(12,)), **flat)
    pipeline = FeaturePipeline(nn.Linear(12, 6).requires_grad_(False))
    audit, secrets = attack(pipeline, left(pipeline, table), table, PARTS, 1e-5, 0, SMALL)
    assert audit.features is not None
    assert audit.features.reconstructions == ()
    assert audit.sheet is None
    assert NO_PICTURES in audit.not_tested
    assert "contact-sheet" not in secrets


def test_too_few_records_are_said(split: Split, whole: nn.Module) -> None:
    none = replace(split, test=split.test.take(np.arange(20)))
    audit, secrets = attack(FeaturePipeline(whole), [], none, PARTS, 1e-5, 0, SMALL)
    assert audit.not_tested[0] == TOO_FEW
    assert (audit.attacks, audit.features, secrets) == ((), Findings(), {})


def test_without_public_pictures_the_sheet_shows_a_public_set_or_drawn_ones(split: Split) -> None:
    bare = replace(split, public=split.public.take(np.arange(0)))
    records, whose = pictures_to_show(bare, 3, 0)
    assert whose == DRAWN
    assert records.x.shape == (3, *SHAPE)
    beside = replace(bare, beside=Public("elsewhere", pictures(40, 77), CLASSES, "0" * 64))
    assert pictures_to_show(beside, 3, 0)[1] == BESIDE.format(name="elsewhere")
    assert pictures_to_show(split, 3, 0)[1] == PUBLIC
