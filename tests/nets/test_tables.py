"""The columns of a table as features: their norm, their names, and what leaves as ONNX."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from airlock import nets
from airlock.bundle import export
from airlock.config import Column
from airlock.errors import NetError
from airlock.methods.contract import NetworkArtefact
from airlock.nets.frontend import Framed
from airlock.nets.tables import CUTS, ColumnLayout, count_pairs, lay_out, steps_linear, steps_of

NUMBER, COLOURS = Column(min=0, max=1), Column(categories=("red", "green", "blue"))
MANY = Column(categories=tuple(map(str, range(40))))
TABLES = {
    "numbers": (NUMBER, NUMBER),
    "categories": (COLOURS, COLOURS),
    "both": (NUMBER, COLOURS, NUMBER, MANY),
}


def encoded(columns: tuple[Column, ...], count: int = 50) -> torch.Tensor:
    rng = np.random.default_rng(0)
    blocks = [
        rng.random((count, 1)) if one.categories is None else np.eye(one.width)[rng.integers(0, one.width, count)]
        for one in columns
    ]
    return torch.from_numpy(np.concatenate(blocks, 1).astype(np.float32))


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_a_network_is_built_again_from_its_name_and_leaves_as_onnx(name: str, products: bool) -> None:
    layout = lay_out(TABLES[name], products)
    net = steps_linear(layout, 3)
    with torch.no_grad():
        net.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    again = nets.build_front(layout.name, (layout.width,), 3)
    again.load_state_dict(net.state_dict())
    x = encoded(TABLES[name])
    with torch.no_grad():
        assert torch.equal(again.eval()(x), net.eval()(x))
    made = NetworkArtefact.leaving(net, layout.name, facts_of(layout))
    session = onnxruntime.InferenceSession(export.to_onnx(made))
    found = session.run(None, {"input": x.numpy()})[0]
    assert np.allclose(found, net(x).detach().numpy(), atol=1e-5)


def facts_of(layout: ColumnLayout):
    from airlock.data import Facts

    return Facts("t", (layout.width,), ("a", "b", "c"), 10, None, "made up")


@pytest.mark.parametrize("name", TABLES)
def test_features_of_an_encoded_record_have_norm_one_before_they_are_scaled(name: str) -> None:
    """So that scaling them to norm 1 does not make one column depend on another."""
    for products in (False, True):
        layout = lay_out(TABLES[name], products)
        norms = steps_of(steps_linear(layout, 2))(encoded(TABLES[name])).norm(dim=1)
        assert torch.allclose(norms, norms[0].expand_as(norms), rtol=1e-4) or "both" in name
    assert float(norms.max()) <= np.sqrt(len(TABLES[name]) * (1 + 0.6**2)) + 1e-4


def test_a_number_is_compared_with_its_cut_points_and_a_category_stays() -> None:
    layout = lay_out((COLOURS, NUMBER), products=False)
    assert (layout.numbers, layout.plain, layout.name) == ((3,), (0, 1, 2), f"steps-1x{CUTS}-0-linear")
    found = steps_of(steps_linear(layout, 2))(torch.tensor([[0.0, 1.0, 0.0, 0.5]]))[0] * np.sqrt(CUTS)
    assert found[:CUTS].sign().tolist() == [1.0] * 8 + [-1.0] * 7  # the eighth cut point is 0.5 itself
    assert found[CUTS:].tolist() == pytest.approx([0.0, np.sqrt(CUTS), 0.0])


def test_products_are_of_two_different_columns_without_those_of_many_categories() -> None:
    columns = TABLES["both"]
    layout = lay_out(columns, products=True)
    assert count_pairs(columns) == 3
    assert len(layout.products) == 3 * 3 + 3 * 3 + 3 * 3  # number × colours, number × number, colours × number
    first = set(range(CUTS))
    assert not any(left in first and right in first for left, right, _ in layout.products)


@pytest.mark.parametrize(
    "name",
    [
        "steps-3x15-0-linear",
        "steps-1x0-0-linear",
        "steps-01x15-0-linear",
        "steps-1x999-999999-linear-",
        "steps--linear",
    ],
)
def test_names_that_fit_no_record_of_this_shape_are_refused(name: str) -> None:
    fits = nets.is_front(name)
    with pytest.raises(NetError):
        nets.build_front(name, (2,), 2) if fits else nets.build(name, (2,), 2)


def test_values_that_are_no_numbers_give_finite_features() -> None:
    net = steps_linear(lay_out(TABLES["both"], products=True), 2)
    assert isinstance(net, Framed)
    wild = torch.full((1, net.front[0].plain.numel() + 2), float("nan"))  # type: ignore[index, union-attr, operator]
    assert torch.isfinite(net.centre(net.front(wild))).all()


def test_whether_a_number_is_missing_is_a_feature_beside_its_steps() -> None:
    flagged = Column(min=0, max=1, missing="indicator")
    layout = lay_out((flagged, COLOURS, NUMBER), products=True)
    assert (layout.width, layout.numbers, layout.plain) == (6, (0, 5), (1, 2, 3, 4))
    net = steps_linear(layout, 2)
    x = torch.tensor([[0.0, 1.0, 1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0, 0.0, 0.5]])
    with torch.no_grad():
        features = net.front(x)
    assert torch.allclose(features.norm(dim=1), torch.ones(2), atol=1e-4)
    assert not torch.equal(features[0], features[1])
