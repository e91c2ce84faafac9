"""Where each answer is made. It imports nothing: the server has the names, and a process imports what it needs."""

from __future__ import annotations

QUICK = {
    "simulate": "plain_answers:simulate",
    "scale": "plain_answers:scale",
    "catalog_entry": "plain_answers:catalog_entry",
    "toml": "plain_answers:toml_file",
    "why": "step_view:why",
    "views/step": "step_view:step_view",
    "views/scale": "scale_view:scale_view",
    "views/budget": "search_view:budget_view",
}
"""Answers within milliseconds: ``POST /api/NAME``."""
SLOW = {
    "plan": "plain_answers:plan",
    "budget": "plain_answers:budget",
    "validate": "plain_answers:validate",
}
"""The same with seconds of work, which wait in the queue of searches."""
INSIDE = {
    "catalog": "controls:catalog_view",
    "openapi": "openapi:openapi_view",
    "read": "dropped:read",
}
"""What other routes ask for."""
PLACES = QUICK | SLOW | INSIDE
