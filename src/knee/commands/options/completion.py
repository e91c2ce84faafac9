"""What the shell completes beyond options and choices: names of the catalogue, and files beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

import click
from click.shell_completion import CompletionItem

KINDS = {
    "model": "model",
    "models": "model",
    "cluster": "cluster",
    "clusters": "cluster",
    "profile": "profile",
    "grid": "grid",
    "names": "study",
    "name": "any",
}
"""Parameter -> what it names."""


def names_of(kind: str) -> list[str]:
    """Every name of a kind."""
    from knee.specs.catalog import Kind, entry_names

    if kind == "grid":
        from knee.engine.energy import grid_names

        return grid_names()
    if kind == "study":
        from knee.commands.study.study_file import study_names

        return study_names()
    if kind == "any":
        return [name for one in get_args(Kind) for name in entry_names(one)]
    return entry_names(cast("Kind", kind))


def completes_names(param: click.Parameter) -> None:
    """Give a parameter that names something of the catalogue its names."""
    kind = KINDS.get(param.name or "")
    if kind is not None and isinstance(param.type, click.types.StringParamType):
        param.shell_complete = _completer(kind)  # type: ignore[method-assign, assignment]


def _completer(kind: str) -> Callable[[click.Context, str], list[CompletionItem]]:
    def complete(ctx: click.Context, incomplete: str) -> list[Any]:  # noqa: ARG001 - click's signature
        found = [CompletionItem(name) for name in names_of(kind) if name.startswith(incomplete)]
        # a path is accepted wherever a name is; the shell lists files itself
        return found or [CompletionItem(incomplete, type="file")]

    return complete
