"""The pages of a service: the remaining budget, and how to send a query. They load nothing from elsewhere.

Only the budget page has a script: it refreshes itself every five seconds, and can be read without it.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from starlette.responses import HTMLResponse

from airlock.bundle.rendering.page import MARKS, allow_script, room_environment, tight
from airlock.ledger.ledger import Balance
from airlock.serve.protocol import INPUT, column_type, output_names, predicts_number
from airlock.serve.service import Service

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # noqa: E501


def page(content: str | bytes, allowed: str = "") -> HTMLResponse:
    """A page that may load and run nothing except what is `allowed`."""
    policy = f"{POLICY}; {allowed}" if allowed else POLICY
    return HTMLResponse(content, headers={"Content-Security-Policy": policy, "X-Frame-Options": "DENY"})


@functools.cache
def live_script() -> tuple[str, str]:
    """The script of the budget page, and what a policy has to allow for it: itself, and requests to this service."""
    place = importlib.resources.files("airlock.serve").joinpath("templates/budget.js")
    script = place.read_text(encoding="utf-8")
    return script, f"{allow_script(script)}; connect-src 'self'"


def budget_figures(service: Service, client: str | None, balance: Balance | None) -> dict[str, Any]:
    """`GET /budget` for programs: a client's, or all of it; nulls if answers are free."""
    interface = service.answerer.interface
    return {
        "model": service.name,
        "release": service.release,
        "client": client,
        "unit": interface.unit,
        "limit": balance.limit if balance else None,
        "spent": balance.spent if balance else None,
        "left": balance.left if balance else None,
    }


def budget_page(service: Service, figures: dict[str, Any]) -> HTMLResponse:
    """`GET /budget` for people: the remaining budget, live, with the card's first line."""
    left, spent = figures["left"], figures["spent"]
    share = None if left is None else (round(100 * left / (left + spent), 1) if left + spent else 0.0)
    state = "good" if share is None or share > 20 else ("warn" if left else "bad")
    script, allowed = live_script()
    content = _render(
        "budget.html.j2",
        service,
        figures=figures,
        share=share,
        state=state,
        badge=MARKS.get(service.verdict, ""),
        script=Markup(script),
        allowed=Markup(allowed),
    )
    return page(content, allowed)


def docs_page(service: Service, routes: list[tuple[str, str, str, str]]) -> str:
    """`GET /docs`: each route as method, path, who may use it, what it does; and a working example."""
    interface = service.answerer.interface
    return _render(
        "docs.html.j2",
        service,
        routes=routes,
        example=_example(service),
        numbers=math.prod(interface.input_shape),
        outputs=output_names(interface, service.schema),
        number=predicts_number(interface),
    )


def _example(service: Service) -> str:
    """The body of a request."""
    schema = service.schema
    if schema is not None and schema.columns:
        tensors = [
            {"name": one.name, "datatype": column_type(one), "shape": [1], "data": [one.example]}
            for one in schema.columns
        ]
        return '{"inputs": [\n  ' + ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in tensors) + "\n]}"
    if schema is not None and schema.text is not None:
        text = {"name": schema.text.name, "datatype": "BYTES", "shape": [1], "data": ["a text of your own"]}
        return json.dumps({"inputs": [text]}, ensure_ascii=False)
    shape = [1, *service.answerer.interface.input_shape]
    example = {"inputs": [{"name": INPUT, "datatype": "FP32", "shape": shape, "data": [0, 0.5]}]}
    return json.dumps(example).replace("0, 0.5]", "0, 0.5, …]")


def front_page(service: Service) -> str:
    """`GET /`: what is served, how to ask, and where the card is."""
    return _render("front.html.j2", service)


def _render(template: str, service: Service, **values: Any) -> str:
    return _environment().get_template(template).render(service=service, **values)


@functools.cache
def _environment() -> Environment:
    made = room_environment("serve")
    made.filters |= {"count": lambda number: f"{number:,}", "tight": tight}
    return made
