"""Table 2 of Wang et al. 2019 beside ours: parameters, multiply-adds, and time in ONNX Runtime on one thread.

    python docs/results/student_compression.py [ROUNDS]

Weights are random: size and speed do not depend on them. 100 inputs one by one, all three networks of a data set in
turn in every round, the median of the rounds; only the ratios compare with another machine.
"""

from __future__ import annotations

import sys

from airlock import nets
from airlock.bundle import export
from airlock.bundle.compression import milliseconds, multiply_adds
from airlock.methods.contract import NetworkArtefact

CLASSES = tuple("0123456789")
# Parameters and seconds for 100 images on a phone, as printed.
PAPER = {
    "mnist": ((1, 28, 28), {"teacher": (155_210, 0.76), "s1": (4_970, 0.03), "s2": (9_880, 0.07)}),
    "svhn": ((3, 32, 32), {"teacher": (1_410_000, 7.34), "s1": (40_000, 0.29), "s2": (70_000, 0.39)}),
    "cifar": ((3, 32, 32), {"teacher": (3_120_000, 13.92), "s1": (150_000, 0.93), "s2": (520_000, 3.10)}),
}


def measure(name: str, rounds: int) -> None:
    """The rows of one data set."""
    shape, printed = PAPER[name]
    made = {size: nets.create(f"rona-{name}-{size}", shape, 10, 0).eval() for size in printed}
    files = {size: export.to_onnx(NetworkArtefact(net, size, shape, CLASSES)) for size, net in made.items()}
    spent = dict(
        zip(made, milliseconds([export.open_onnx(file) for file in files.values()], shape, rounds), strict=True)
    )
    count = {size: sum(p.numel() for p in net.parameters()) for size, net in made.items()}
    work = {size: multiply_adds(net, shape) for size, net in made.items()}
    whole, took = printed["teacher"]
    for size, (parameters, seconds) in printed.items():
        print(
            f"| {name} {size} | {parameters / 1000:,.4g} K, {whole / parameters:.1f} × | {took / seconds:.1f} × "
            f"| {count[size]:,}, {count['teacher'] / count[size]:.1f} × "
            f"| {work[size] / 1e6:.3g} M, {work['teacher'] / work[size]:.1f} × "
            f"| {len(files[size]) / 1000:,.0f} kB | {spent[size]:.3g} ms, {spent['teacher'] / spent[size]:.1f} × |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    print("| | paper: parameters | faster | here: parameters | multiply-adds | ONNX file | 100 images, faster |")
    print("|---|---|---|---|---|---|---|")
    for name in PAPER:
        measure(name, int(sys.argv[1]) if len(sys.argv) > 1 else 15)


if __name__ == "__main__":
    main()
