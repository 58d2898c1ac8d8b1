"""The five ways out. Every method of a channel keeps the same contract, and is found by its name.

Channels never import each other: what two of them share lives further down the house.

    registry     where methods are found, those of other packages too, and how a config becomes one
    contract     what every method is and does, and the values that pass through it
    choice       which method a config without one means, from public facts
    case         what a method brings to court
    config_case  the case of a whole configuration
    artefact     what leaves: the protocol, a network, a set of features
    interface    what leaves when no network does: the right to ask, and the answerers
    search       the best of a secret number of runs of declared candidates, paid for as a whole
    search_case  its cases: the model that leaves, and the scores of test records
    rows         which rows leave: a declared number of them, of which one record changes one
    dp_sgd       DP-SGD, for any channel: settings, plan, training under noise
    floor        public records alone as a floor: a paid comparison decides what leaves
    fine_tuning  what of a network of transformers is trained under noise, and the settings for that
    dp_sgd_case  its case: one noisy step, and one whole run with canaries
    weights/     a model trained under noise
    twin/        a model built from many
    student/     a compact model taught by others
    features/    features instead of records
    answers/     answers to queries
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.methods.artefact import Artefact, FeatureSet, NetworkArtefact
    from airlock.methods.case import Canaries, Case
    from airlock.methods.choice import is_free
    from airlock.methods.contract import Channel, Executed, Plan, Release
    from airlock.methods.interface import Answerer, Interface
    from airlock.methods.registry import (
        GONE,
        METHODS,
        RENAMED,
        build,
        current_name,
        find,
        is_built_in,
        learning,
        named,
        open_canaries,
        open_case,
        protecting,
        refuse_gone,
        register,
    )
    from airlock.methods.search import Search, SearchFigures
    from airlock.methods.search_case import CASES

__all__ = [
    "CASES",
    "GONE",
    "METHODS",
    "RENAMED",
    "Answerer",
    "Artefact",
    "Canaries",
    "Case",
    "Channel",
    "Executed",
    "FeatureSet",
    "Interface",
    "NetworkArtefact",
    "Plan",
    "Release",
    "Search",
    "SearchFigures",
    "build",
    "current_name",
    "find",
    "is_built_in",
    "is_free",
    "learning",
    "named",
    "open_canaries",
    "open_case",
    "protecting",
    "refuse_gone",
    "register",
]

lazy.load(__name__)
