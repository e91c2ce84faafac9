"""``knee catalog``: what is known, and from where."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from knee.cli import nearest
from knee.errors import InputError

if TYPE_CHECKING:
    from knee.specs.catalog import Kind

CONSTANTS = "constants"


@click.command("catalog")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; numbers in base SI units.")
def command(name: str | None, as_json: bool) -> None:
    """Show what knee knows and from where.

    Without NAME: every model, GPU, cluster and software profile, and what `knee budget` rests on: scaling laws, laws of
    the critical batch, families of shapes, training runs. With the NAME of one, or `constants`: every value with the
    kind of its source (vendor, measured, published, fitted, assumed) and the source itself.
    """
    if name is None:
        _print_all(as_json)
    elif name == CONSTANTS:
        _print_constants(as_json)
    else:
        _print_entry(name, as_json)


def _print_all(as_json: bool) -> None:
    from knee.cli.catalog_budget import WORDS, budget_entries, entry_line
    from knee.cli.render.table import print_heading, print_rows
    from knee.specs.catalog import KINDS, entry_names

    if as_json:
        names: dict[str, list[str]] = {f"{kind}s": entry_names(kind) for kind in KINDS}
        names |= {kind: list(entries) for kind, entries in budget_entries().items()}
        click.echo(json.dumps({**names, CONSTANTS: [row["field"] for row in _constants()]}, indent=2))
        return
    for kind in KINDS:
        print_heading(f"{kind}s")
        print_rows([[name, _LINES[kind](_spec(kind, name))] for name in entry_names(kind)], dim=(1,))
    for other, entries in budget_entries().items():
        print_heading(WORDS[other])
        print_rows([[name, entry_line(other, name)] for name in entries], dim=(1,))
    print_heading(CONSTANTS)
    print_rows(
        [[CONSTANTS, f"{len(_constants())} values of the cost model that belong to none of the above"]], dim=(1,)
    )


def _print_entry(name: str, as_json: bool) -> None:
    from knee.cli.catalog_budget import budget_entries
    from knee.cli.render.table import print_heading, print_rows
    from knee.specs.catalog import KINDS, entry_names

    others = budget_entries()
    found = [
        *(_entry(kind, name) for kind in KINDS if name in entry_names(kind)),
        *(_budget_entry(kind, name) for kind, entries in others.items() if name in entries),
    ]
    if not found:
        known = [*(entry for kind in KINDS for entry in entry_names(kind)), *(n for e in others.values() for n in e)]
        raise InputError(
            f"nothing named {name!r} is in the catalogue",
            hint=nearest(name, [*known, CONSTANTS]) or "`knee catalog` lists all",
        )
    if as_json:
        entries = [{key: value for key, value in entry.items() if key != "heading"} for entry in found]
        click.echo(json.dumps(entries[0] if len(entries) == 1 else entries, indent=2))
        return
    for entry in found:
        print_heading(entry["heading"])
        print_rows([[row["field"], row["shown"], row["kind"], row["source"]] for row in entry["values"]], dim=(3,))


def _entry(kind: Kind, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "values": _values(kind, name),
        "heading": f"{kind} {name}: {_LINES[kind](_spec(kind, name))}",
    }


def _budget_entry(kind: str, name: str) -> dict[str, Any]:
    from knee.cli.catalog_budget import WORDS, entry_values

    return {"name": name, "kind": kind, "values": entry_values(kind, name), "heading": f"{name}: of {WORDS[kind]}"}


def _print_constants(as_json: bool) -> None:
    from knee.cli.render.table import print_heading, print_rows

    rows = _constants()
    if as_json:
        click.echo(json.dumps({"name": CONSTANTS, "kind": CONSTANTS, "values": rows}, indent=2))
        return
    print_heading("constants of the cost model")
    print_rows([[row["field"], row["shown"], row["kind"], row["source"]] for row in rows], dim=(3,))


def _constants() -> list[dict[str, Any]]:
    from knee.specs.constants import constant, constant_rows

    return [
        {"field": name, "value": constant(*name.split(".", 1)), "shown": shown, "kind": kind, "source": source}
        for name, shown, kind, source in constant_rows()
    ]


def _values(kind: Kind, name: str) -> list[dict[str, Any]]:
    from knee.specs.load import describe

    spec = _spec(kind, name)
    return [
        {"field": path, "value": _at(spec, path), "shown": shown, "kind": source_kind, "source": source}
        for path, shown, source_kind, source in describe(kind, name)
    ]


def _spec(kind: Kind, name: str) -> Any:
    from knee.specs.catalog import read_entry
    from knee.specs.check import Mistake, build, raise_mistakes

    mistakes: list[Mistake] = []
    spec = build(kind, read_entry(kind, name), mistakes)
    raise_mistakes(name, mistakes)
    return spec


def _at(spec: Any, path: str) -> Any:
    """The value at a dotted path; () and the like as lists, which JSON has."""
    for part in path.split("."):
        if isinstance(spec, tuple):
            spec = spec[int(part)]
        else:
            spec = spec[part] if isinstance(spec, dict) else getattr(spec, part)
    return list(spec) if isinstance(spec, tuple) else spec


# One line about each entry.


def _model_line(model: Any) -> str:
    from knee.workload.parameters import parameter_count

    count = parameter_count(model)
    factor, letter = next((f, x) for f, x in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")) if count >= f)
    size = f"{count / factor:.3g} {letter}"
    return (
        f"{size} parameters: {model.layers} layers, {model.hidden:,} wide, {model.heads} heads, "
        f"vocabulary of {model.vocab:,}"
    )


def _gpu_line(gpu: Any) -> str:
    from knee.units import show

    name, peak = ("bf16", gpu.bf16_flop_per_s) if gpu.bf16_flop_per_s else ("fp16", gpu.fp16_flop_per_s)
    return (
        f"{gpu.vendor} {gpu.arch}, {show(peak, 'flop_per_s')} {name}, {show(gpu.hbm_bytes, 'bytes')} at "
        f"{show(gpu.hbm_bytes_per_s, 'bytes_per_s')}, {show(gpu.tdp_w, 'w')}"
    )


def _cluster_line(cluster: Any) -> str:
    from knee.units import show

    node, fabric = cluster.node, cluster.fabric
    return (
        f"nodes of {node.gpus} x {cluster.gpu.name}, {node.link} {show(node.link_bytes_per_s, 'bytes_per_s')}, "
        f"{fabric.kind} {show(fabric.nic_bytes_per_s, 'bytes_per_s')} a GPU"
    )


def _profile_line(profile: Any) -> str:
    return f"{profile.kernels} kernels, {profile.attention} attention"


_LINES: dict[str, Callable[[Any], str]] = {
    "model": _model_line,
    "gpu": _gpu_line,
    "cluster": _cluster_line,
    "profile": _profile_line,
}
