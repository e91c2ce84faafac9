"""What the Step view needs in one answer, and why each number is what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import knee
from knee.api.simulate import Simulation
from knee.errors import InputError
from knee.serve.answers.questions import asked_of
from knee.serve.answers.step_lanes import lanes_of
from knee.serve.answers.written import command_of, python_of
from knee.units import show
from knee.why.chain import WhyLine


def step_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """One step: numbers, memory, lanes, collectives, power, cost and trust."""
    asked = asked_of(body, "simulate")
    answer = knee.simulate(**asked)
    data = answer.to_dict()
    trust, assumptions = data.pop("trust"), data.pop("assumptions")
    return {
        "measurement": data,
        "memory": _memory(answer, trust),
        **lanes_of(answer.evaluated),
        "collectives": data["comm_loads"],
        "power": _power(answer),
        "cost": _cost(answer, data.get("training")),
        "trust": trust,
        "assumptions": assumptions,
        "command": command_of("simulate", asked),
        "python": python_of("simulate", asked),
    }


def _memory(answer: Simulation, trust: Mapping[str, Any]) -> dict[str, Any]:
    parts = answer.memory
    assert parts is not None
    names = [field.name for field in fields(parts)]
    return {
        "parts": [{"name": name.removesuffix("_bytes"), "bytes": getattr(parts, name)} for name in names],
        "total_bytes": answer.memory_bytes,
        "capacity_bytes": answer.job.cluster.gpu.hbm_bytes,
        "fits": answer.fits,
        "likely_fits": trust["fits"],
        "low_frac": trust["memory_low_frac"],
        "high_frac": trust["memory_high_frac"],
    }


def _power(answer: Simulation) -> dict[str, Any]:
    gpu, watts = answer.job.cluster.gpu, answer.power_w_per_gpu
    return {
        "power_w_per_gpu": watts,
        "power_w": None if watts is None else watts * answer.job.gpus,
        "tdp_w": gpu.tdp_w,
        "idle_w": gpu.idle_w,
        "tokens_per_j": answer.tokens_per_j,
        "energy_j_per_step": None if watts is None else watts * answer.job.gpus * answer.step_s,
    }


def _cost(answer: Simulation, training: Any) -> dict[str, Any]:
    price = answer.job.cluster.usd_per_gpu_h
    return {
        "usd_per_gpu_h": price,
        "usd_per_mtoken": answer.usd_per_mtoken,
        "usd_per_h": None if price is None else price * answer.job.gpus,
        "usd_per_step": None if price is None else price * answer.job.gpus * answer.step_s / 3600,
        "training": training,
    }


def why(body: Mapping[str, Any]) -> dict[str, Any]:
    """The formulas, constants and sources behind a step; ``number`` names the line to start from."""
    number = body.get("number")
    asked = asked_of(body, "simulate")
    answer = knee.simulate(**asked)
    chain = [*answer.why(), *_price(answer)]
    lines = [{key: getattr(line, key) for key in ("name", "value", "formula", "source", "depth")} for line in chain]
    return {"number": number, "lines": lines if number is None else _below(lines, str(number))}


def _price(answer: Simulation) -> list[WhyLine]:
    """What the cost of a token follows from; nothing where the price is unknown."""
    price, cost, key = answer.job.cluster.usd_per_gpu_h, answer.usd_per_mtoken, "usd_per_gpu_h"
    if price is None or cost is None:
        return []
    found = next((source for name, source in answer.request.sources.items() if name.endswith(key)), None)
    source = "" if found is None else f"{found.kind}: {found.text}"
    formula = f"{key} * 1e6 / (3,600 * tokens_per_s_per_gpu)"
    return [
        WhyLine(name="usd_per_mtoken", value=f"{cost:.3g} USD", formula=formula),
        WhyLine(name="tokens_per_s_per_gpu", value=f"{answer.tokens_per_s_per_gpu:,.0f}", depth=1),
        WhyLine(name=key, value=show(price, "usd_per_h"), source=source, depth=1),
    ]


def _below(lines: list[dict[str, Any]], number: str) -> list[dict[str, Any]]:
    """The line of that name with those that explain it."""
    at = next((i for i, line in enumerate(lines) if line["name"] == number), None)
    if at is None:
        names = ", ".join(line["name"] for line in lines if line["depth"] == 0)
        raise InputError(
            f"number {number[:80]!r} is not explained", hint=f"use one of {names}", code="unknown-name", field="number"
        )
    depth = lines[at]["depth"]
    end = next((i for i in range(at + 1, len(lines)) if lines[i]["depth"] <= depth), len(lines))
    return lines[at:end]
