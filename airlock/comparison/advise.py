"""The chooser: which method to use for a stated need, before any run or from measured results.

Only a proven method is ever recommended. Before a run, nothing is known about the accuracy on these records, and the
noise of different mechanisms cannot be compared by its size; methods are then ordered by what usually does best
(`Channel.rank`), as for a config that names no method (`methods.choice`), and the reason for each gives its planned
figures. After a run, accuracy decides; for a phone, the smallest model is chosen among those whose accuracy lies within
the interval of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from airlock import data, methods
from airlock.accounting.terms import Status
from airlock.comparison.cell import planned_questions
from airlock.comparison.matrix import PLAIN, Matrix, title_of, try_plan
from airlock.comparison.settings import CompareConfig
from airlock.comparison.values import BASELINE, PUBLIC, Advice, Cell, MethodVerdict, Need, Ranked, Row, rows_of
from airlock.config import ReleaseConfig
from airlock.errors import AirlockError, Refused
from airlock.methods import Plan
from airlock.methods.choice import is_drowned
from airlock.methods.contract import ArtefactKind

_SHOWN = (
    "noise_norm_over_radius",
    "noise_on_a_logit",
    "noise_as_a_share_of_the_range",
    "noise_on_a_count",
    "noise_on_mean_gradient",
    "noise_multiplier",
    "steps",
    "shards",
    "teachers",
    "heads",
    "queries",
    "trainable_parameters",
    "parameters",
    "bytes",
)


@dataclass(frozen=True)
class _Beside:
    """The reference rows for a choice, if they were run: no privacy, and the public records alone."""

    baseline: Row | None = None
    public: Row | None = None

    def told(self) -> str:
        known = ((self.baseline, "without privacy"), (self.public, "by the public records alone"))
        said = [f"{row.accuracy:.1%} {how}" for row, how in known if row]
        return f", against {' and '.join(said)}" if said else ""

    def doubt(self, chosen: Row) -> str:
        """Whether the private records are needed at all."""
        if self.public is None or self.public.high < chosen.low:
            return ""
        if self.public.accuracy >= chosen.accuracy:
            return " The public records alone do no worse, and cost no privacy: nothing private need leave."
        return " Its interval overlaps with that of the public records alone, which cost no privacy."


@dataclass(frozen=True)
class _Option:
    """One method as the chooser sees it; `error` if it cannot be built, `row` if it was run."""

    method: str
    plan: Plan | None = None
    error: str = ""
    row: Row | None = None
    refuted: str = ""

    @property
    def status(self) -> Status:
        return methods.named(self.method).status


def advise(config: CompareConfig, data_dir: Path | None = None) -> Advice:
    """Choose before any run, from the planned figures; reads no record.

    Raises:
        AirlockError: The declared facts about the data are not enough for any method.
    """
    epsilon = chosen_epsilon(config)
    data.describe(config.release(PLAIN, epsilon, config.seeds[0], settings={}), data_dir)
    options = []
    for method in config.names:
        planned = try_plan(config, method, epsilon, data_dir)
        failed = isinstance(planned, AirlockError)
        options.append(_Option(method, error=str(planned)) if failed else _Option(method, planned[1]))  # type: ignore[index]
    return _advice(options, config.need, epsilon, _Beside())


def advise_measured(
    config: CompareConfig, matrix: Matrix, cells: Sequence[Cell], court: Sequence[MethodVerdict]
) -> Advice:
    """Choose from measured results; methods that were not run are ranked by their plans."""
    epsilon = chosen_epsilon(config)
    rows = {(row.method, row.epsilon_asked): row for row in rows_of(cells)}
    plans = {task.method: task.plan for task in matrix.tasks if task.epsilon == epsilon and task.kind == "release"}
    errors = {one.method: one.reason for one in matrix.skipped if not one.epsilons or epsilon in one.epsilons}
    options = []
    for method in config.names:
        row = rows.get((method, epsilon))
        error = errors.get(method, "" if method in plans else "It was not asked for.")
        options.append(_Option(method, plans.get(method), error, row, _refuted(method, row, court)))
    return _advice(options, config.need, epsilon, _Beside(rows.get((BASELINE, None)), rows.get((PUBLIC, None))))


def chosen_epsilon(config: CompareConfig) -> float:
    """The ε of the need, or else the median of those compared (the lower of two)."""
    return config.need.epsilon or sorted(config.epsilons)[(len(config.epsilons) - 1) // 2]


def release_for(config: CompareConfig, advice: Advice, data_dir: Path | None = None) -> ReleaseConfig:
    """The release config of the first choice.

    Raises:
        Refused: No method is recommended.
    """
    if advice.method is None or advice.epsilon is None:
        raise Refused("a method to recommend", "none", advice.sentence)
    planned = try_plan(config, advice.method, advice.epsilon, data_dir)
    if isinstance(planned, AirlockError):
        raise planned
    return planned[0]


def as_toml(config: ReleaseConfig, sentence: str) -> str:
    """A release config as TOML without defaults, preceded by why it was chosen."""
    table = config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    data = table["data"]
    table["data"] = data["source"] if set(data) == {"source"} else data
    return f"# {sentence}\n{tomli_w.dumps(table)}"


def _refuted(method: str, row: Row | None, court: Sequence[MethodVerdict]) -> str:
    if row is not None and row.epsilon is not None and (row.epsilon_measured or 0.0) > row.epsilon:
        return f"An attack measured ε of at least {row.epsilon_measured:.2f}, more than the promise."
    found = next((one for one in court if one.method == method and one.refuted), None)
    return found.sentence if found else ""


def _advice(options: Sequence[_Option], need: Need, epsilon: float, beside: _Beside) -> Advice:
    measured = any(option.row for option in options)
    ordered = sorted(options, key=lambda option: _place(option, need, measured))
    fits = [option for option in ordered if not _against(option, need)]
    if measured:
        fits = [option for option in fits if option.row]
    if need.runs_on == "phone" and measured:
        fits = _smallest_first(fits)
        ordered = fits + [option for option in ordered if option not in fits]
    return Advice(
        method=fits[0].method if fits else None,
        epsilon=epsilon,
        sentence=_sentence(fits, need, epsilon, beside),
        ranking=tuple(_ranked(option, need, option in fits) for option in ordered),
        measured=measured,
    )


def _place(option: _Option, need: Need, measured: bool) -> tuple[object, ...]:
    """The sort key: proven methods first, then those that meet the need, then measured accuracy, then `rank`."""
    method = methods.named(option.method)
    first = method.compact and need.runs_on == "phone" and not measured
    place = (option.plan is not None and is_drowned(option.plan), not first, method.rank)
    accuracy = option.row.accuracy if option.row else -1.0
    return option.status != "proven", bool(_against(option, need)), option.plan is None, -accuracy, *place


def _smallest_first(fits: list[_Option]) -> list[_Option]:
    """Methods whose accuracy lies within the interval of the best, by size; then the others."""
    best = fits[0].row if fits else None
    if best is None:
        return fits
    alike = [option for option in fits if option.row and option.row.accuracy >= best.low]
    sized = sorted(alike, key=lambda option: option.row.bytes or 0 if option.row else 0)
    return sized + [option for option in fits if option not in alike]


def _unfit_interface(need: Need) -> str:
    if need.receives == "white-box":
        return "Its model stays inside and only answers leave, and the receiver needs the model."
    if need.runs_on == "phone":
        return "Its model stays inside and answers over the network, and it must run on a phone."
    return ""


def _unfit_features(need: Need) -> str:
    unfit = need.receives == "black-box" or need.runs_on == "phone"
    return "Features leave, on which the receiver trains a model elsewhere." if unfit else ""


# By kind of artefact: why it does not meet a need; empty if it does.
UNFIT: Mapping[ArtefactKind, Callable[[Need], str]] = {
    "network": lambda need: "",
    "interface": _unfit_interface,
    "features": _unfit_features,
}


def objection(method: str, planned: Plan | AirlockError, need: Need) -> str:
    """Why a method may not be recommended for a need before any run; empty if it may.

    Args:
        method: As CHANNEL/METHOD.
        planned: Its plan, or why there is none.
        need: What the release is for.
    """
    failed = isinstance(planned, AirlockError)
    option = _Option(method, error=str(planned)) if failed else _Option(method, planned)  # type: ignore[arg-type]
    return _against(option, need)


def _against(option: _Option, need: Need) -> str:
    """Why a method may not be recommended for this need; empty if it may."""
    method = option.method
    if option.status != "proven":
        return f"Not proven. {methods.named(method).unproven}"
    if option.refuted:
        return f"In doubt. {option.refuted}"
    if option.error:
        return f"It cannot be made here. {option.error}"
    if unfit := UNFIT[methods.named(method).artefact](need):
        return unfit
    if method.startswith("student/") and need.public is False:
        return "A student learns from public records, and there are none."
    count = planned_questions(option.plan) if option.plan else None
    if need.queries is not None and count is not None and count < need.queries:
        return f"It answers {count:,} questions, and {need.queries:,} are needed."
    return ""


def _ranked(option: _Option, need: Need, recommended: bool) -> Ranked:
    plan, row, against = option.plan, option.row, _against(option, need)
    epsilon = row.epsilon if row else None
    if plan and not row and option.status == "proven":
        epsilon = plan.guarantee.epsilon
    figures = {key: plan.details[key] for key in _SHOWN if key in plan.details} if plan else {}
    return Ranked(
        method=option.method,
        channel=option.method.partition("/")[0],
        title=title_of(option.method),
        status=option.status,
        recommended=recommended,
        reason=against or _reason(option, figures),
        epsilon=epsilon,
        accuracy=row.accuracy if row else None,
        low=row.low if row else None,
        high=row.high if row else None,
        queries=row.queries if row else planned_questions(plan) if plan else None,
        figures=figures,
    )


def _reason(option: _Option, figures: dict[str, str | int | float]) -> str:
    plan, row = option.plan, option.row
    assert plan is not None
    asked = planned_questions(plan)
    covers = "any number of questions" if asked is None else f"{asked:,} questions"
    if row is not None:
        size = f", {row.bytes:,} bytes" if row.bytes else ""
        return f"Proven, {covers}; {_accuracy(row)}{size}."
    noise = next((key for key in figures if key.startswith("noise")), None)
    said = f"; {noise.replace('_', ' ')} {figures[noise]:.3g}" if noise else ""
    doubt = ", which is likely to drown it" if is_drowned(plan) else ""
    return f"Proven, ε = {plan.guarantee.epsilon:.3g} for {covers}{said}{doubt}."


def _accuracy(row: Row) -> str:
    runs = "" if row.seeds == 1 else f", mean of {row.seeds} runs"
    return f"{row.accuracy:.1%} correct (95% interval {row.low:.1%} to {row.high:.1%}{runs})"


def _sentence(fits: Sequence[_Option], need: Need, epsilon: float, beside: _Beside) -> str:
    start = f"For {_in_words(need)}, at ε = {epsilon:g}:"
    if not fits:
        return f"{start} no proven method fits and has a result; see why, method by method."
    first = fits[0]
    title = f"{first.method} ({title_of(first.method)})"
    others = "the only proven method that fits" if len(fits) == 1 else f"{len(fits)} proven methods that fit"
    if first.row is None:
        why = others if len(fits) == 1 else f"of {others}, the one that usually does best; only a run can tell"
        return f"{start} {title}, {why}."
    top = max(option.row.accuracy for option in fits if option.row)
    told = "the most accurate of" if first.row.accuracy == top else "the smallest of the most accurate of"
    why = others if len(fits) == 1 else f"{told} {others}"
    alike = [option.method for option in fits[1:] if option.row and option.row.high >= first.row.low]
    doubt = f" Its interval overlaps with that of {', '.join(alike)}." if alike else ""
    return f"{start} {title}, {why}: {_accuracy(first.row)}{beside.told()}.{doubt}{beside.doubt(first.row)}"


def _in_words(need: Need) -> str:
    """The need as the object of "for"."""
    what = {
        "white-box": "a receiver who gets the model",
        "black-box": "a receiver who may only ask",
        None: "any receiver",
    }[need.receives]
    where = {"phone": ", on a phone", "cloud": ", in the cloud", "any": ""}[need.runs_on]
    count = f", {need.queries:,} questions" if need.queries else ""
    public = {True: ", with public records", False: ", without public records", None: ""}[need.public]
    return f"{what}{where}{count}{public}"
