"""An entry for the registry of differential privacy deployments.

The registry was proposed by Dwork, Kohli and Mulligan (2019); Nanayakkara, Ghazi and Vadhan (arXiv 2509.13509) describe
its hierarchical schema, and OpenDP publishes it with the entries (registry.opendp.org, repository
opendp/deployments-registry-data). The entry has the names and values of `schemas/deployments-schema.yaml` there, as of
15 July 2026 (commit 3e9c812), which has no version number. The schema takes no further keys, so where each field comes
from is a table of its own, by the field's path.

What a card cannot know (who publishes it, what for, where) is left for the curator. No ε is entered that is not proven.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from airlock.bundle.card import Card
from airlock.bundle.reports.quoting import Quote, Sources
from airlock.config import Frozen, merge, parse

FOLLOWS = "opendp/deployments-registry-data, schemas/deployments-schema.yaml, commit 3e9c812 (15 July 2026)"
CURATOR = "To be filled in by the curator."
TIER = 3

ProductType = Literal[
    "Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API", "SQL queries"
]
Sector = Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"]
PRODUCTS: Mapping[str, ProductType] = {
    "network": "Machine learning model",
    "interface": "Interactive API",
    "features": "Dataset",
}


class DeploymentBasics(Frozen):
    """What the data product is and who publishes it; the fields are the registry's own."""

    name: str
    data_curators: tuple[str, ...]
    intended_use: str
    data_product_type: ProductType
    data_product_region: str
    description: str
    publication_date: str
    data_product_sector: Sector | None = None


class DeploymentVariant(Frozen):
    """Which variant of differential privacy; the fields are the registry's own."""

    variant_name: Literal["Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"] | None = None
    data_domain: str
    unprotected_quantities: str


class LossParameters(Frozen):
    """ε and δ, as the registry names them."""

    epsilon: float
    delta: float


class DeploymentLoss(Frozen):
    """Unit and parameters; the fields are the registry's own."""

    privacy_unit: str
    privacy_unit_details: str
    privacy_parameters: LossParameters | None = None
    privacy_parameters_details: str


class DeploymentModel(Frozen):
    """Who is trusted, and how it is accessed; the fields are the registry's own."""

    model_name: Literal["Local", "Central", "Shuffle", "Federated", "Varies"]
    model_name_details: str
    actors: str
    release_type: Literal["One release", "Many releases"]
    release_type_details: str
    data_source_type: Literal["Static", "Dynamic"]
    access_type: Literal["Interactive", "Non-interactive"]
    access_type_details: str


class DeploymentAccounting(Frozen):
    """How loss is accounted; the fields are the registry's own."""

    post_processing: str
    composition: str


class DeploymentImplementation(Frozen):
    """How it was implemented; the fields are the registry's own."""

    preprocessing_and_hyperparameter_tuning: str
    mechanisms: str
    justification: str


class DeploymentRecord(Frozen):
    """Who wrote the entry; the fields are the registry's own."""

    sources: str
    notes: str
    registry_authors: tuple[str, ...]


class Deployment(Frozen):
    """All of a deployment; the fields are the registry's own."""

    basic: DeploymentBasics
    dp_variant: DeploymentVariant
    privacy_loss: DeploymentLoss
    deployment_model: DeploymentModel
    accounting: DeploymentAccounting
    implementation: DeploymentImplementation
    administrative: DeploymentRecord


class RegistryEntry(Frozen):
    """An entry of the registry; the fields are the registry's own."""

    url_slug: str
    status: Literal["Draft"]
    tier: Literal[1, 2, 3]
    deployment: Deployment

    def to_table(self) -> dict[str, Any]:
        """Plain values; the registry has no nulls, so a field without a value is left out."""
        return self.model_dump(mode="json", exclude_none=True)


def make(card: Card, filled_in: Mapping[str, object] | None = None) -> tuple[RegistryEntry, dict[str, Quote]]:
    """The entry of a card, and where each of its fields comes from.

    Args:
        card: The card; nothing of the dossier ever enters a public registry.
        filled_in: Values by dotted path, such as `deployment.basic.data_curators`, that the curator fills in.

    Raises:
        ConfigError: A field is not one of the registry's, or its value is not one that it takes.
    """
    quotes = _quotes(Sources(card)) | {key: Quote(key, value, "user") for key, value in (filled_in or {}).items()}
    table: dict[str, object] = merge({}, {key: quote.value for key, quote in quotes.items()})
    return parse(RegistryEntry, table), quotes


def _quotes(sources: Sources) -> dict[str, Quote]:
    """Every field that is known, by its path."""
    parts = {
        "": _administration(sources),
        "basic": _basic(sources),
        "dp_variant": _variant(sources),
        "privacy_loss": _loss(sources),
        "deployment_model": _model(sources),
        "accounting": _accounting(sources),
        "implementation": _implementation(sources),
    }
    return {
        (f"deployment.{part}.{key}" if part else key): quote
        for part, own in parts.items()
        for key, quote in own.items()
    }


def _own(value: object) -> Quote:
    """A value that is for the curator, or the same for every entry."""
    return Quote("", value, "curator" if value in (CURATOR, (CURATOR,)) else "airlock")


def _administration(sources: Sources) -> dict[str, Quote]:
    card = sources.card
    slug = f"airlock-{card.release_id[:12]}"
    return {
        "url_slug": sources.derive("card:release_id", "", slug, "'airlock-' and its first twelve characters"),
        "status": _own("Draft"),
        "tier": _own(TIER),
        "deployment.administrative.sources": sources.derive(
            "card:release_id", "", f"card.json of Airlock release {card.release_id}.", "in words"
        ),
        "deployment.administrative.notes": sources.quote("card:headline"),
        "deployment.administrative.registry_authors": _own((CURATOR,)),
    }


def _basic(sources: Sources) -> dict[str, Quote]:
    card = sources.card
    kind, how = (
        card.artefact,
        "a network is a machine learning model, an interface an interactive API, features a dataset",
    )
    return {
        "name": sources.derive(
            "card:method", "", f"{card.data.name}: {card.channel}/{card.method}", "with card:data.name"
        ),
        "data_curators": _curators(sources),
        "intended_use": sources.quote("card:about.purpose") if card.about.purpose else _own(CURATOR),
        "data_product_type": sources.derive(f"card:{kind}", "", PRODUCTS[kind], how),
        "data_product_region": _own(CURATOR),
        "description": sources.quote("card:leaves"),
        "publication_date": sources.quote("card:created"),
    }


def _curators(sources: Sources) -> Quote:
    said = sources.card.about.controller
    return sources.derive("card:about.controller", "", (said,), "as a list") if said else _own((CURATOR,))


def _variant(sources: Sources) -> dict[str, Quote]:
    found = {
        "data_domain": sources.quote("card:data.origin"),
        "unprotected_quantities": _unprotected(sources),
    }
    if sources.proven:
        found["variant_name"] = sources.derive(
            "card:guarantee.delta", "", "Approximate DP", "ε is stated at a δ above 0"
        )
    return found


def _unprotected(sources: Sources) -> Quote:
    """What no ε covers: public records, and labels that leave as they are."""
    card = sources.card
    lines = []
    if card.data.public_share:
        units = "people" if card.data.people is not None else "records"
        lines.append(f"{card.data.public_share:.3g} of the {units}, which the holder declared public.")
    if card.features is not None and card.features.labels == "clear":
        lines.append("The label of each record, which leaves as it is.")
    says = " ".join(lines) or "None that the card names."
    return sources.derive(
        "card:data.public_share", "", says, "in words, with card:features.labels where features leave"
    )


def _loss(sources: Sources) -> dict[str, Quote]:
    unproven = sources.derive("card:guarantee.status", "", "None: nothing is proven.", "no unit without a proof")
    found = {
        "privacy_unit": sources.quote("card:guarantee.unit") if sources.proven else unproven,
        "privacy_unit_details": sources.quote("card:guarantee.relation"),
        "privacy_parameters_details": sources.derive(
            "card:words.promise", "", " ".join(sources.card.words.promise), "its sentences in one text"
        ),
    }
    if sources.proven:
        found["privacy_parameters.epsilon"] = sources.quote("card:guarantee.epsilon")
        found["privacy_parameters.delta"] = sources.quote("card:guarantee.delta")
    return found


def _model(sources: Sources) -> dict[str, Quote]:
    card = sources.card
    asked = card.interface
    access = "Non-interactive" if asked is None else "Interactive"
    details = "What leaves is used as it is."
    if asked is not None:
        details = "No limit." if asked.units is None else f"{asked.units} units in all, {asked.unit} each."
    how = "a card with an interface is asked; other things leave once"
    return {
        "model_name": _own("Central"),
        "model_name_details": _own("The holder of the records applies differential privacy before anything leaves."),
        "actors": sources.derive(
            "card:guarantee.assumptions",
            "",
            " ".join(card.guarantee.assumptions) or "None.",
            "its sentences in one text",
        ),
        "release_type": sources.derive(
            "card:total.releases",
            "",
            "Many releases" if card.total.releases else "One release",
            "whether it lists others",
        ),
        "release_type_details": sources.quote("card:words.others"),
        "data_source_type": _own("Static"),
        "access_type": sources.derive("card:interface", "", access, how),
        "access_type_details": sources.derive("card:interface", "", details, "in words"),
    }


def _accounting(sources: Sources) -> dict[str, Quote]:
    promise = sources.card.guarantee
    how = f"{promise.accountant} by {promise.accountant_version}; sampling: {promise.sampling}."
    return {
        "post_processing": _own(
            "Files are derived from what the mechanism released; no record is read again for them."
        ),
        "composition": sources.derive("card:guarantee.accountant", "", how, "with accountant_version and sampling"),
    }


def _implementation(sources: Sources) -> dict[str, Quote]:
    card = sources.card
    how = f"{card.channel}/{card.method} of Airlock {card.airlock_version}. {card.words.noise}"
    return {
        "preprocessing_and_hyperparameter_tuning": sources.quote("card:words.tuning"),
        "mechanisms": sources.derive("card:words.noise", "", how, "with card:method and card:airlock_version"),
        "justification": _own(CURATOR),
    }
