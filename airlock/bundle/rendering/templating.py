"""How pages are rendered: templates of a room over the look that all pages share (`templates/look.html.j2`).

Every value is escaped where it is printed, an unknown one is an error, and a page loads nothing from elsewhere: the
policy in its head forbids it. A page with a script of its own names it by its SHA-256 (`allow_script`).
"""

from __future__ import annotations

import base64
import hashlib

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def environment(room: str = "bundle") -> Environment:
    """Renders the templates of a room, which may extend `look.html.j2` and take shapes from `marks.html.j2`."""
    loaders = [PackageLoader(f"airlock.{name}", "templates") for name in dict.fromkeys((room, "bundle"))]
    return Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def allow_script(source: str) -> str:
    """The directive of a Content-Security-Policy under which this script runs, and no other."""
    return f"script-src 'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
