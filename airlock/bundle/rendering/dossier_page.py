"""The dossier as a page to read, print and sign inside, and its place in the vault.

In: a `Dossier`. Out: `dossier.html`, which needs no network and no script, beside `dossier.json` in the vault.
"""

from __future__ import annotations

import base64
from pathlib import Path

from airlock.bundle.dossier import STAYS, Dossier
from airlock.bundle.rendering import formatting, page
from airlock.bundle.rendering.roc import draw_roc, has_curve
from airlock.bundle.vault import DOSSIER, Vault

HTML = "dossier.html"


def render(dossier: Dossier) -> str:
    """The page, which says first that it stays inside."""
    template = page.environment().get_template("dossier.html.j2")
    return template.render(
        dossier=dossier,
        badge=page.BADGES[dossier.verdict],
        stays=STAYS,
        scale=page.scale,
        views=page.VIEWS,
        roc=_curves(dossier),
        figures=formatting,
        rows=page.rows_of(dossier.utility.figures, ()),
    )


def _curves(dossier: Dossier) -> str:
    """The ROC curves as the address of a picture; empty where there are none."""
    attacks = dossier.audit.attacks
    if not has_curve(attacks):
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(draw_roc(attacks).encode()).decode()


def place(vault: Vault, release_id: str) -> Path:
    """Where the page of a release's newest dossier lies."""
    return vault.dossier_folder(release_id) / HTML


def keep(vault: Vault, dossier: Dossier) -> Path:
    """Write dossier and page to the vault; older ones stay beside them. Returns the page."""
    files = {DOSSIER: dossier.to_json().encode(), HTML: render(dossier).encode()}
    return vault.store_dossier(dossier.release_id, files) / HTML
