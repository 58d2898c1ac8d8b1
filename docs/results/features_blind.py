"""How well a blind guess of pictures does that knows the label: with labels of public pictures, and without them.

python docs/results/features_blind.py cifar10 12000 --data-dir DATA
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from airlock.config import DataConfig
from airlock.data import open_public
from airlock.mechanisms.reconstruction import blind_guess
from airlock.training.devices import to_input

LEVELS = (18.0, 20.0, 22.0, 24.0, 28.0, 32.0)


def main() -> None:
    """A table of upper bounds, in percent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("records", type=int)
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    public = open_public(DataConfig(source=asked.data), asked.data_dir)
    pictures = to_input(torch.from_numpy(public.records.x[: asked.records]))
    labels = torch.from_numpy(public.records.y[: asked.records])
    print(f"| | {' | '.join(f'{level:g} dB' for level in LEVELS)} |")
    print("|---" * (len(LEVELS) + 1) + "|")
    for name, known in (("class by class", labels), ("classes times the best of all", None)):
        found = blind_guess(pictures, LEVELS, 0, public.classes, known)
        print(f"| {name} | {' | '.join(f'{100 * one:.1f}' for one in found)} |")


if __name__ == "__main__":
    main()
