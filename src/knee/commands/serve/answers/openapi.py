"""The OpenAPI 3.1 description of the server, from the signatures of ``import knee`` and the classes of its results."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

import knee
from knee.commands.plan.result import RankedPlan
from knee.commands.serve.answers.controls import Control
from knee.commands.serve.answers.questions import KINDS, MOST_CURVES, parameters
from knee.engine.measurement import Measurement
from knee.search.knee import Knee, Return
from knee.specs.catalog import entry_names
from knee.specs.fields import descriptions
from knee.specs.plan import Plan
from knee.trust.trust import DoublingBand, Trust

REF = "#/components/schemas/"
JSON = "application/json"
RESULTS = (Measurement, Trust, RankedPlan, Knee, Return, DoublingBand, Control)
"""Classes whose fields are those of answers."""
SEARCHES = ("plan", "scale_best", "budget")
OPEN: dict[str, Any] = {"type": "object", "additionalProperties": True}
NUMBER_OR_TEXT = {"type": ["number", "string"]}


def openapi_view(body: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - as other answers
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "knee explorer",
            "version": knee.__version__,
            "summary": "How many GPUs a training run can use",
            "description": "Bodies are the keyword arguments of the Python functions of the same names. The name of "
            "each key ends in its unit. Null means that a value was not given, or is not known.",
        },
        "paths": _paths(),
        "components": {"schemas": _schemas(), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for result in RESULTS:
        schema = TypeAdapter(result).json_schema(mode="serialization", ref_template=REF + "{model}")
        found |= schema.pop("$defs", {})
        words = descriptions(result)
        for name, own in schema.get("properties", {}).items():
            if name in words:
                own["description"] = words[name]
        found[result.__name__] = schema
    text = {"type": "string"}
    error = {"code": text, "message": text, "field": {"type": ["string", "null"]}, "hint": {"type": ["string", "null"]}}
    found["Error"] = _object({"error": _object(error, ("code", "message"))}, ("error",))
    for function in ("simulate", "scale", "plan", "budget"):
        found[f"{function}_arguments"] = arguments_schema(function)
    return found | _answers()


def _answers() -> dict[str, Any]:
    """What the results' ``to_dict`` give, and the views around them."""
    text, number, several = {"type": "string"}, {"type": "number"}, {"type": "array", "items": {"type": "string"}}
    asked: dict[str, Any] = dict[str, Any](dict.fromkeys(KINDS, text)) | {
        key: {"type": "integer"} for key in ("gpus", "global_batch", "seq_len")
    }
    plan = {"type": "object", "properties": {one.name: {} for one in fields(Plan)}}
    simulation = {"allOf": [{"$ref": f"{REF}Measurement"}, _object({**asked, "plan": plan}, (*asked, "plan"))]}
    point = {"gpus": {"type": "integer"}, "usable": {"type": "boolean"}, "reason": {"type": ["string", "null"]}}
    curve = {
        **dict.fromkeys(("model", "cluster"), text),
        "points": _list(_object(point, ("gpus", "usable"))),
        "knees": {"type": "object", "additionalProperties": {"$ref": f"{REF}Knee"}},
        "knees_with_failures": {"type": "object", "additionalProperties": {"$ref": f"{REF}Knee"}},
        "doubling_band": {"anyOf": [{"$ref": f"{REF}DoublingBand"}, {"type": "null"}]},
        "sentence": text,
    }
    copies = {"command": text, "python": text}
    interval = {"type": "array", "prefixItems": [number, number, text, number, {"type": "integer"}], "items": False}
    lane = {"stage": {"type": "integer"}, "kind": text, "group": text, "intervals": _list(interval)}
    step = {
        "measurement": {"$ref": f"{REF}simulate_answer"},
        "words": text,
        "memory": OPEN,
        "lanes": _list(_object(lane, tuple(lane))),
        "end_s": number,
        "collectives": _list(OPEN),
        "power": OPEN,
        "cost": OPEN,
        "trust": {"$ref": f"{REF}Trust"},
        "assumptions": several,
        **copies,
    }
    line = {"name": text, "value": text, "formula": text, "source": text, "depth": {"type": "integer"}}
    row = {"name": text, "measured": {"type": ["object", "null"]}, "simulated": {"type": ["object", "null"]}}
    return {
        "simulate_answer": simulation,
        "scale_answer": _object({"curves": _list(_object(curve, tuple(curve))), "assumptions": several}, ("curves",)),
        "plan_answer": _object(
            {"plans": _list(OPEN), "recommended": OPEN, "trust": {"$ref": f"{REF}Trust"}}, ("plans",)
        ),
        "budget_answer": _object({"best": OPEN, "law": OPEN, "limits": OPEN}, ("best",)),
        "step_view": _object(step, tuple(step)),
        "scale_view": _object({"curves": _list(_object({**curve, **copies}, tuple(curve)))}, ("curves",)),
        "budget_view": _object(
            {"law": OPEN, "flop_counting": OPEN, "equal_loss": _list(OPEN), "limits": OPEN}, ("law",)
        ),
        "why": _object({"lines": _list(_object(line, tuple(line)))}, ("lines",)),
        "catalog": _object(
            {"models": _list(OPEN), "controls": _list({"$ref": f"{REF}Control"})}, ("models", "controls")
        ),
        "read": _object({"kind": text, "name": text, "rows": _list(_object(row, ("name",)))}, ("kind", "rows")),
    }


def _paths() -> dict[str, Any]:
    def of(function: str) -> dict[str, Any]:
        return {"$ref": f"{REF}{function}_arguments"}

    curves = {"type": "array", "maxItems": MOST_CURVES, "items": OPEN}
    scale = {"allOf": [OPEN, {"type": "object", "properties": {"counts": {}, "curves": curves}}]}
    why = {"allOf": [OPEN, {"type": "object", "properties": {"number": {"type": "string"}}}]}
    search = _object({"kind": {"enum": list(SEARCHES)}}, ("kind",))
    named = _object({"name": {"type": "string"}, "kind": {"type": "string"}}, ("name",))
    name = {"name": "name", "required": True, "schema": {"type": "string", "maxLength": 300}}
    file = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    events = "Events queued {ahead}, progress {what, done, total, seconds}, best {row}, ranked, done and error."
    return {
        "/api/openapi.json": {"get": _operation("This document", OPEN)},
        "/api/catalog": {"get": _operation("Names, controls and presets", "catalog")},
        "/api/status": {"get": _operation("How busy the server is", OPEN)},
        "/api/session": {"post": _operation("The token as a cookie", OPEN, OPEN)},
        **{
            f"/api/{function}": {"post": _operation(_first_line(function), f"{function}_answer", of(function))}
            for function in ("simulate", "scale", "plan", "budget")
        },
        "/api/validate": {"post": _operation(_first_line("validate"), OPEN, OPEN)},
        "/api/catalog_entry": {"post": _operation(_first_line("catalog_entry"), OPEN, named)},
        "/api/why": {"post": _operation("Formulas, constants and sources behind a step", "why", why)},
        "/api/toml": {"post": _operation("The job as a file", {"type": "string"}, OPEN, media="application/toml")},
        "/api/views/step": {"post": _operation("All of the Step view", "step_view", OPEN)},
        "/api/views/scale": {"post": _operation("All of the Scale view", "scale_view", scale)},
        "/api/views/budget": {"post": _operation("The Budget view before its search", "budget_view", OPEN)},
        "/api/searches": {
            "post": _operation(f"A search. {events}", {"type": "string"}, search, media="text/event-stream")
        },
        "/api/read": {
            "post": _operation("A file beside its simulation", "read", file) | {"parameters": [{"in": "query", **name}]}
        },
        "/api/records": {"get": _operation("Records of the folder", OPEN)},
        "/api/records/{name}": {
            "get": _operation("One of them beside its simulation", "read") | {"parameters": [{"in": "path", **name}]}
        },
    }


def _operation(
    summary: str, answer: str | Mapping[str, Any], body: Mapping[str, Any] | None = None, *, media: str = JSON
) -> dict[str, Any]:
    found = {"$ref": REF + answer} if isinstance(answer, str) else answer
    refused = {"description": "refused, with the reason", "content": {JSON: {"schema": {"$ref": f"{REF}Error"}}}}
    data: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": {media: {"schema": found}}}, "default": refused},
        "security": [{}, {"token": []}],
    }
    if body is not None:
        content = body if any("/" in key for key in body) else {JSON: {"schema": body}}
        data["requestBody"] = {"required": True, "content": dict(content)}
    return data


def _first_line(function: str) -> str:
    return (inspect.getdoc(getattr(knee, function)) or "").partition("\n")[0]


def arguments_schema(function: str) -> dict[str, Any]:
    """Keyword arguments of a function as the schema of a body."""
    target = getattr(knee, function)
    signature, hints = inspect.signature(target).parameters, get_type_hints(target)
    plan_hints, words = get_type_hints(Plan), descriptions(Plan)
    found: dict[str, Any] = {}
    for name in sorted(parameters(function)):
        own = name in signature
        schema = schema_of(hints[name] if own else plan_hints[name])
        if name in KINDS:
            schema = _names(name, many=function == "scale")
        if not own and name in words:
            schema = schema | {"description": words[name]}
        default = signature[name].default if own else inspect.Parameter.empty
        if isinstance(default, (str, int, float, bool)):
            schema = schema | {"default": default}
        found[name] = schema
    return _object(found, (), closed=True)


def _names(kind: Any, *, many: bool) -> dict[str, Any]:
    one = {"type": "string", "enum": entry_names(kind)}
    return {"anyOf": [one, _list(one), {"type": "null"}]} if many else {"anyOf": [one, {"type": "null"}]}


def schema_of(hint: Any) -> dict[str, Any]:
    """The schema of an annotation; what JSON cannot say is left out of it."""
    origin, of = get_origin(hint), get_args(hint)
    simple = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    if hint in simple:
        return {"type": simple[hint]}
    if origin is Literal:
        return {"enum": list(of)}
    if origin in (Union, types.UnionType):
        options = [option for option in map(schema_of, of) if option]
        return {"anyOf": [*options, *([] if {"type": "null"} in options else [{"type": "null"}])]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": NUMBER_OR_TEXT}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _list(schema_of(of[0])) if of and get_origin(of[0]) is not tuple else {}
    return {}


def _object(properties: Mapping[str, Any], required: Sequence[str] = (), *, closed: bool = False) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": not closed,
    }


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}
