"""A card of any kind, and its dossier, are shown without what made them: `airlock show` answers at once."""

from __future__ import annotations

import pytest

from airlock.bundle import Bundle, Dossier, Vault
from airlock.bundle.rendering.page import keep_dossier
from tests.loading import heavy


@pytest.mark.parametrize("kind", ["of_a_network", "of_answers", "of_features"])
def test_a_card_is_shown_without_what_made_it(kind: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    assert heavy("show", bundle.folder) == []


def test_a_dossier_is_shown_without_what_made_it(of_a_network: Bundle, dossier: Dossier) -> None:
    keep_dossier(Vault.open(), dossier)
    assert heavy("show", of_a_network.folder, "--dossier") == []
