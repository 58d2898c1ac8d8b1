"""A bundle in the layout of other platforms: a repository of the Hugging Face Hub, a model of MLflow.

In: the folder of a bundle with a network. Out: a new folder, or an upload. The bundle is in it whole and unchanged, so
that whoever has the folder can verify it; what stands beside it is a function of the card, of the declared schema and
of what the user says about a license. Nothing is taken from the vault.

    layout        a bundle that may be handed on, its files as they were verified, and a folder of them
    hub           a repository of the Hugging Face Hub: model card, safetensors, the bundle
    mlflow_model  a model of MLflow, and what MLflow calls to load it
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.bundle.platforms.layout import FORMS as FORMS
    from airlock.bundle.platforms.layout import open_for_others as open_for_others

__all__ = [
    "FORMS",
    "open_for_others",
]

lazy.load(__name__)
