"""Random consistent forgeries: whatever is changed, and however it is signed, a required key notices."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from airlock.bundle import Bundle, verify
from airlock.bundle.contents import Contents
from airlock.bundle.signing.keys import SigningKey
from airlock.bundle.signing.signatures import examine
from tests.bundle.forging import SIGNED, Forger


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("forgeries", [24, pytest.param(1000, marks=pytest.mark.long)])
def test_every_forgery_is_noticed_where_a_key_is_required(
    of_a_network: Bundle, of_answers: Bundle, of_features: Bundle, holder: SigningKey, stranger: SigningKey,
    tmp_path: Path, forgeries: int,
) -> None:  # fmt: skip
    """The signature is looked at alone; in one of eight the whole of `verify` is made, with the key and without."""
    originals = (of_a_network, of_answers, of_features)
    copies = [Path(shutil.copytree(one.folder, tmp_path / str(index))) for index, one in enumerate(originals)]
    forgers = [
        Forger(Bundle(folder, one.card), stranger, seed)
        for seed, (folder, one) in enumerate(zip(copies, originals, strict=True))
    ]
    noticed, ways, consistent = 0, Counter[str](), 0
    for number in range(forgeries):
        forger = forgers[number % len(forgers)]
        what = forger.forge()
        ways[what.split("; ")[1]] += 1
        found = examine(Contents(forger.folder), None, [holder.public]).release
        assert found.test(), what
        noticed += 1
        if number % 8 == 0:
            whole = verify(forger.folder, signers=[holder.public])
            assert not whole.ok, what
            assert "signature" in {check.name for check in whole.checks if check.outcome == "failed"}
            consistent += all(c.outcome != "failed" for c in whole.checks if c.name != "signature")
    assert noticed == forgeries
    assert set(ways) == {f"signature: {how}" for how in SIGNED}
    print(f"{consistent} of {(forgeries + 7) // 8} would pass without a key")
    for forger in forgers:
        forger.restore()
        assert verify(forger.folder, signers=[holder.public]).ok
