"""The settings of `student`/`private-teacher`, and what suits data sets by name.

`settings.private` is DP-SGD's own table, with the names that it has in `weights`/`gaussian`. Its defaults are for a
teacher that goes on from what public records taught it: small steps. They follow from public facts alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airlock.config import ReleaseConfig
from airlock.data import Facts
from airlock.errors import ConfigError
from airlock.methods.noisy_settings import GaussianTraining
from airlock.methods.student.settings import TeacherSettings, settings_for, with_free_rounds
from airlock.training.distillation.selection import Name as SelectName

_BY_NAME: dict[str, dict[str, Any]] = {
    "digits": {"steps": 40, "lot_size": 1797, "learning_rate": 0.05, "clip_norm": 1.0},
    "mnist": {"steps": 300, "lot_size": 4096, "learning_rate": 1.0, "clip_norm": 0.1, "ema": 0.95},
    "cifar10": {"steps": 200, "lot_size": 4096, "learning_rate": 0.5, "clip_norm": 0.1, "ema": 0.95},
}

_ROUNDS_FOR_CLASSES = 20


class PrivateTeacherSettings(TeacherSettings):
    """A teacher under DP-SGD, and a student whose questions cost nothing.

    Args:
        private: How the teacher goes on with the private records: the settings of `weights`/`gaussian`.
        private_layers: How many of the teacher's last layers the private records move; all when left out. The others
            stay as the public records left them, and get no noise.
        rehearse: Make the steps smaller, by halves, until noise alone would cost the public teacher at most 2% of the
            public records (10% where classes have none); left out, where private.learning_rate is left out too.
        labels: What the student learns from beside queries: "public" labels, or the "teacher"'s answers in their place;
            "auto" takes the teacher's where classes have no public record, which labels would teach it never to say.
        match: The distance from the teacher's answers: that of "logits", or of "softened" outputs as in the paper;
            "auto" takes logits where classes have no public record.
        varied: Also ask about variations of public images (`training.distillation.variations`); left out, where classes
            have no public record.
        rounds: As in the paper, or more where public records are few, so that the student makes 2,000 steps; at least
            20 where classes have no public record, all of which the teacher has to bring.
        select: As in the paper; any choice is free here.
        select_rate: All public records.
    """

    private: GaussianTraining
    private_layers: Annotated[int, Field(ge=1)] | None = None
    rehearse: bool | None = None
    labels: Literal["auto", "public", "teacher"] = "auto"
    match: Literal["auto", "logits", "softened"] = "auto"
    varied: bool | None = None
    select: SelectName = "random"
    select_rate: Annotated[float, Field(gt=0, le=1)] = 1.0


def private_settings_for(config: ReleaseConfig, facts: Facts) -> PrivateTeacherSettings:
    """The user's settings over the defaults for this data.

    Raises:
        ConfigError: Settings that contradict each other or ask for what is not there.
    """
    given = config.settings.get("private", {})
    if not isinstance(given, dict):
        raise ConfigError("a table [settings.private] with the settings of private training", "another value")
    defaults = _BY_NAME.get(facts.name) or _general(facts.expected("private", config.split))
    own: dict[str, object] = {"rehearse": "learning_rate" not in given}
    if facts.without(config.split):
        own["rounds"] = _ROUNDS_FOR_CLASSES
    table = {**own, **config.settings, "private": {**defaults, **given}}
    settings = settings_for(config.model_copy(update={"settings": table}), facts, PrivateTeacherSettings)
    settings = with_free_rounds(settings, config, facts, queries_for(settings, config, facts))
    if settings.varied and len(facts.shape) != 3:
        raise ConfigError("images for settings.varied = true", f"records of shape {facts.shape}")
    return settings


def queries_for(settings: PrivateTeacherSettings, config: ReleaseConfig, facts: Facts) -> int:
    """Query samples of an epoch, as a public figure."""
    return settings.queries or max(1, round(settings.select_rate * facts.expected("public", config.split)))


def _general(records: int) -> dict[str, Any]:
    """Large lots and a few hundred small steps."""
    lot = max(min(records, 256), records // 10)
    return {"steps": 300, "lot_size": lot, "learning_rate": 1.0, "clip_norm": 0.1, "ema": 0.95}
