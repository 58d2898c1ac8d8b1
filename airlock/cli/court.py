"""`airlock court`: can a method's stated (ε, δ) be refuted?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from airlock.cli.terminal import (
    DataDirOption,
    JsonOption,
    SetOption,
    overrides,
    print_json,
    print_lines,
    print_table,
    progress_bar,
    translate_errors,
    tries,
)  # fmt: skip
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.auditing import OneRunVerdict, Verdict
    from airlock.mechanisms import Stream


@translate_errors
@tries
def court(
    name: str | None = typer.Argument(
        None,
        metavar="[CHANNEL/METHOD]",
        help="The method whose claim to test; without it, all are listed.",
        show_default=False,
    ),
    config: Path | None = typer.Option(
        None,
        "--config",
        "-c",
        help="Test exactly this configuration, including its network, on made-up records.",
        show_default=False,
    ),
    epsilon: float | None = typer.Option(
        None, help="The claimed ε, 1 by default; a proven method is calibrated to it.", show_default=False
    ),
    delta: float | None = typer.Option(None, help="The claimed δ, 1e-5 by default.", show_default=False),
    data_dir: Path | None = DataDirOption,
    settings: list[str] = SetOption,
    pairs: int = typer.Option(20_000, help="The most pairs of runs."),
    confidence: float = typer.Option(
        0.95, help="The confidence of the verdict: 0.95 refutes a true claim in at most 5% of trials."
    ),
    seconds: float = typer.Option(25.0, help="The longest time to run pairs, in seconds."),
    one_run: bool = typer.Option(
        False, "--one-run", help="One whole release with many canaries instead of many short runs; weaker."
    ),
    people: bool = typer.Option(
        False, "--people", help="Add or remove people with many records instead of single records."
    ),
    canaries: int = typer.Option(
        1000, help="With --one-run: the number of canaries, each included or not by a coin flip."
    ),
    seed: int | None = typer.Option(None, help="Seed all randomness, for a reproducible verdict.", show_default=False),
    as_json: bool = JsonOption,
) -> None:
    """Try to refute a method's claim: run it with and without a record, many times, and bet against it.

    With --config, test one configuration: its network, mode, precision, device and method, through the same code as a
    release, on made-up records of the declared shape. No record is read.

    Exit codes: 0 the claim stands, 1 it is refuted, 2 it could not be tested: bad input, no case, or too few pairs to
    refute it.
    """
    if name is None and config is None:
        _list(as_json)
        return
    from airlock.auditing.audit_game import check_claim
    from airlock.mechanisms import Randomness
    from airlock.methods import current_name

    stream = Randomness.make(0, insecure_seed=seed).privacy
    verdict: Verdict | OneRunVerdict
    if config is not None:
        if name is not None or one_run or people:
            raise ConfigError(
                "--config alone",
                "a method, --one-run or --people as well",
                "A configuration names its method, and whom it protects.",
            )
        changes = overrides(settings, epsilon=epsilon, delta=delta)
        name, verdict = _configured(config, changes, data_dir, pairs, confidence, seconds, stream)
        words = in_words(name, verdict)
        _finish(name, verdict, words, as_json)
    assert name is not None
    name = current_name(name)
    epsilon, delta = 1.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta
    check_claim(epsilon, delta)
    if settings or data_dir:
        raise ConfigError(
            "--set and --data-dir only with --config", "no --config", "A method's own case has no settings."
        )
    if one_run:
        verdict = _one_run(name, epsilon, delta, people, canaries, confidence, stream)
        words = one_run_in_words(name, verdict)
    else:
        verdict = _many_runs(name, epsilon, delta, people, pairs, confidence, seconds, stream)
        words = in_words(name, verdict)
    _finish(name, verdict, words, as_json)


def _finish(name: str, verdict: Verdict | OneRunVerdict, words: str, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"method": name, **verdict.to_dict()})
    else:
        print_lines(lambda width, plain: words)
    raise typer.Exit(1 if verdict.refuted else 0 if verdict.tried else 2)


def _configured(
    path: Path, changes: Mapping[str, object], data_dir: Path | None, pairs: int, confidence: float, seconds: float,
    stream: Stream,
) -> tuple[str, Verdict]:  # fmt: skip
    from airlock.config import load
    from airlock.pipeline import try_config

    with progress_bar() as progress:
        return try_config(load(path, changes), stream, pairs, confidence, seconds, data_dir, progress)


def _many_runs(
    name: str, epsilon: float, delta: float, people: bool, pairs: int, confidence: float, seconds: float, stream: Stream
) -> Verdict:
    from airlock.auditing import judge
    from airlock.methods import open_case

    with progress_bar() as progress:
        return judge(open_case(name, epsilon, delta, people), stream, pairs, confidence, seconds, progress)


def _one_run(
    name: str, epsilon: float, delta: float, people: bool, canaries: int, confidence: float, stream: Stream
) -> OneRunVerdict:
    from airlock.auditing import judge_one_run
    from airlock.auditing.one_run_audit import check_count
    from airlock.methods import open_canaries

    check_count(canaries)
    with progress_bar() as progress:
        return judge_one_run(open_canaries(name, epsilon, delta, canaries, people), stream, confidence, progress)


def in_words(name: str, verdict: Verdict) -> str:
    """The verdict; its first line is what matters."""
    claim, at = verdict.case.claim, verdict.refuted_at
    more = ""
    if at is not None and at != (claim.epsilon, claim.delta):
        more = f"The same proof claims (ε, δ) = ({at[0]:.4g}, {at[1]:.3g}), and that is false.\n"
    elif at is None and verdict.would_show is None:
        more = f"Give it more time: --seconds {10 * math.ceil(verdict.seconds)}, and more --pairs if you set them.\n"
    return (
        f"{verdict.sentence(name)}\n{more}"
        f"{_bound(verdict)}\n"
        f"{verdict.pairs:,} pairs of runs in {verdict.seconds:.1f} s: {verdict.case.pair}.\n"
        f"Claimed by: {claim.theorem}."
    )


def one_run_in_words(name: str, verdict: OneRunVerdict) -> str:
    """The verdict of one run; its first line is what matters."""
    claim, best = verdict.canaries.claim, verdict.best
    stated = f"{name} claims (ε, δ) = ({claim.epsilon:.4g}, {claim.delta:g})"
    sure = f"with {verdict.confidence * 100:g}% confidence"
    if verdict.epsilon_lower_bound >= claim.epsilon:
        first = f"Refuted: {stated}, and that is false, {sure}."
    elif verdict.refuted:
        first = f"Refuted: {stated} by a proof that fails, {sure}."
    elif verdict.would_show is None:
        first = f"Not tried: {stated}; this few canaries could not have refuted it, whatever the mechanism."
    else:
        seen = f"could have refuted ε ≥ {verdict.would_show:.2f}, {verdict.of_what}, in about half of such trials"
        first = f"Not refuted: {stated}; {seen}. This is no proof."
    return (
        f"{first}\n"
        f"{_bound(verdict)}\n"
        f"{_on_curve(verdict)}"
        f"{best.correct:,} of {best.guesses:,} guesses were right: {verdict.canaries.what}; {verdict.seconds:.1f} s.\n"
        f"One run is weak: with every guess right it could refute ε up to {verdict.could_refute:.2f}, and noise that "
        "is somewhat too small goes unnoticed. Without --one-run the court detects more.\n"
        f"Claimed by: {claim.theorem}."
    )


def _on_curve(verdict: OneRunVerdict) -> str:
    look, divisor = verdict.on_curve, verdict.noise_divided_by
    if look is None or divisor is None:
        return ""
    found = f"{look.correct:,} of the {look.guesses:,} surest guesses were right"
    if not divisor:
        return f"{found}, which says nothing about the noise.\n"
    return (
        f"{found}: if the noise is all that may be wrong, it is at most {1 / divisor:.2f} times as claimed, and "
        f"ε at least {verdict.epsilon_of_less_noise:.2f}.\n"
    )


def _bound(verdict: Verdict | OneRunVerdict) -> str:
    if verdict.epsilon_lower_bound <= 0:
        return "These runs show no ε above 0 at this δ."
    return f"ε at this δ is above {verdict.epsilon_lower_bound:.2f}, with the same confidence."


def _list(as_json: bool) -> None:
    from airlock.methods import CASES, METHODS

    names = [*(f"{channel}/{method}" for channel, methods in METHODS.items() for method in methods), *CASES]
    if as_json:
        print_json(names)
    else:
        print_table("What can be tested", ["airlock court"], [[name] for name in names])
