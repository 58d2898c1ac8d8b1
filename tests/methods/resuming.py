"""What a student's method keeps when its release is interrupted, whatever its teachers are."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from airlock.data import Split
from airlock.errors import Interrupted, TrainingError

TEACHING = "teaching the student"


def pressing(label: str) -> Any:
    """Ctrl-C at this bar."""

    def press(at: str, done: int, total: int) -> None:
        if at == label and done >= 1:
            os.kill(os.getpid(), signal.SIGINT)

    return press


class Resuming:
    """Set `bars` (where it is interrupted), `paid` (the file with what noise was drawn for) and `never_again`."""

    bars: tuple[str, ...]
    paid: str

    def kept(self, split: Split, folder: Path | None, seed: int | None = 1, **more: Any) -> list[torch.Tensor]:
        """The weights of a student whose run keeps checkpoints there."""
        raise NotImplementedError

    def never_again(self, patch: pytest.MonkeyPatch) -> None:
        """From here on no private record may be asked."""
        raise NotImplementedError

    def test_an_interrupted_release_resumes_to_the_same_student(self, split: Split, tmp_path: Path) -> None:
        whole = self.kept(split, None)
        for bar in self.bars:
            folder = tmp_path / "kept"
            with pytest.raises(Interrupted):
                self.kept(split, folder, progress=pressing(bar))
            assert (folder / self.paid).exists() == (bar == TEACHING)
            again = self.kept(split, folder, resume=True)
            assert all(torch.equal(a, b) for a, b in zip(again, whole, strict=True))
            assert not folder.exists()

    def test_what_was_paid_for_is_kept_for_the_same_records_and_for_no_others(
        self, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With secret noise too: a resumed run takes what was drawn, and draws nothing again."""
        folder = tmp_path / "kept"
        with pytest.raises(Interrupted):
            self.kept(split, folder, None, progress=pressing(TEACHING))
        fewer = replace(split, private=split.private.take(np.arange(1, len(split.private))))
        with pytest.raises(TrainingError, match="other records"):
            self.kept(fewer, folder, None, resume=True)
        with pytest.raises(TrainingError, match="of this very run"):
            self.kept(split, folder, 1, resume=True)  # the card would say of secret noise that it was seeded
        self.never_again(monkeypatch)
        self.kept(split, folder, None, resume=True)
        assert not folder.exists()
