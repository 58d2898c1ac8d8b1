"""Features tell an attribute that is not the label, noise hides it, and the label alone is the blind guess."""

from __future__ import annotations

import pytest
import torch

from airlock.auditing.attacks.attribute import Attribute, attribute_of, infer, majority
from airlock.auditing.features.feature_pipeline import FeaturePipeline
from airlock.auditing.features.reconstruction_metrics import told
from airlock.errors import ConfigError
from airlock.training import Run
from tests.auditing.attacks.toy_features import conv_front, sides


@pytest.mark.parametrize(("sigma", "seen"), [(0.0, True), (50.0, False)])
def test_brightness_is_read_off_the_features(sigma: float, seen: bool) -> None:
    pipeline = FeaturePipeline(conv_front(), sigma=sigma)
    known, target, left = sides(pipeline, attacked=100)
    attribute = attribute_of("brightness", known.x)
    guess, blind = infer(pipeline, known, attribute, 0, Run(), 60), majority(known, attribute)
    result = told(attribute.name, attribute(target.x), guess(left, target.y), blind(target.y), len(known))
    assert (result.low > result.blind and result.value > result.smallest_effect) == seen
    assert result.low <= result.value <= result.high
    assert seen or result.value < result.blind + 0.1


def test_an_attribute_that_is_the_label_gains_nothing() -> None:
    known, target, _ = sides(FeaturePipeline(conv_front()))
    own = {tuple(x.flatten().tolist()): int(y) for x, y in zip(*_joined(known, target), strict=True)}
    label = Attribute("class 0", lambda x: torch.tensor([-own[tuple(r.flatten().tolist())] for r in x]).float(), -0.5)
    assert (majority(known, label)(target.y) == label(target.x)).all()


def test_a_median_splits_the_known_records_and_unknown_attributes_are_refused() -> None:
    table = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    assert attribute_of("column 2", table)(table).sum() == 25
    for name, records in (("column 3", table), ("brightness", table), ("colour", torch.zeros(2, 1, 4, 4))):
        with pytest.raises(ConfigError, match="an attribute of these records"):
            attribute_of(name, records)


def _joined(known, target):  # type: ignore[no-untyped-def]
    return torch.cat([known.x, target.x]), torch.cat([known.y, target.y])
