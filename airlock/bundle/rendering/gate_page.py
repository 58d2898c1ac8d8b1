"""The gate's page: whether there is a reason to reject, what to know, what to ask, and where to sign.

In: a `Weighing`, and the card that was weighed. Out: a page that needs no network and no script. It stays inside: what
attacks found is among its reasons.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airlock.bundle.card import Card
from airlock.bundle.packing import packing_of
from airlock.bundle.rendering import formatting, text
from airlock.bundle.rendering.page import PROVED, about_rows, environment, undeclared
from airlock.bundle.rendering.strength import STRENGTHS

if TYPE_CHECKING:
    from airlock.bundle.gate import Weighing

CLOSED = "Closed: there is a reason to reject."
OPEN = "Open: nothing here is a reason against the release."
CAREFUL = "Open: there is no reason to reject, and there {are} for caution."


def first_line(weighing: Weighing) -> str:
    """The verdict in one sentence, for the page and the terminal."""
    careful = len(weighing.caution)
    if not weighing.open:
        return CLOSED
    return OPEN if not careful else CAREFUL.format(are="is 1" if careful == 1 else f"are {careful}")


def state(weighing: Weighing, card: Card | None) -> str:
    """Colour and shape: green only if nothing speaks against the release and its promise is strong and whole."""
    if not weighing.open or card is None:
        return "unproven"
    if card.mark != "proven":
        return card.mark
    return "limited" if weighing.caution else "proven"


def render_gate(weighing: Weighing, card: Card | None, bundle: str) -> str:
    """The page.

    Args:
        weighing: The reasons.
        card: The card that was weighed; None if it could not be read.
        bundle: The bundle's folder, as the reader knows it.
    """
    return (
        environment()
        .get_template("gate.html.j2")
        .render(
            weighing=weighing,
            first=first_line(weighing),
            state=state(weighing, card),
            card=card,
            bundle=shlex.quote(bundle),
            packing=None if card is None else packing_of(card.artefact),
            words=text.UNITS["record" if card is None or card.data.people is None else "person"],
            proved=None if card is None else PROVED[card.verdict],
            strengths=STRENGTHS,
            figures=formatting,
            about_rows=about_rows,
            missing=[] if card is None else undeclared(card.about),
            to_ask=to_ask(card),
        )
    )


def to_ask(card: Card | None) -> Sequence[str]:
    """The sentences that no program can check."""
    return () if card is None else (*card.guarantee.assumptions, "All other releases from the same data are declared.")
