"""The OpenAPI document is one, and answers are what it says."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from knee.commands.serve.answers.openapi import openapi_view
from serve.served import STEP, Served
from serve.test_answers import asked

DOCUMENT = json.loads(json.dumps(openapi_view({})))
WHOLE = {
    "type": "object",
    "required": ["openapi", "info", "paths"],
    "properties": {
        "openapi": {"const": "3.1.0"},
        "info": {"type": "object", "required": ["title", "version"]},
        "paths": {
            "type": "object",
            "patternProperties": {
                "^/": {
                    "type": "object",
                    "propertyNames": {"enum": ["get", "post"]},
                    "additionalProperties": {
                        "type": "object",
                        "required": ["summary", "responses"],
                        "properties": {"responses": {"required": ["200", "default"]}},
                    },
                }
            },
            "additionalProperties": False,
        },
    },
}
"""What the specification says of the parts that are used."""


def validator(schema: Any) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def test_it_is_a_document_whose_references_lead_somewhere() -> None:
    jsonschema.Draft202012Validator(WHOLE).validate(DOCUMENT)
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert references <= schemas.keys()
    names = re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT))
    assert all(name.startswith("#/components/schemas/") for name in names)


def test_its_paths_are_those_of_the_server(server: Served) -> None:
    paths = server.get("/api/openapi.json").data["paths"]
    assert paths == DOCUMENT["paths"]
    routes = {
        route.path.replace("{name:path}", "{name}"): route.methods
        for route in server.app.routes
        if hasattr(route, "methods") and route.path != "/"
    }
    assert routes.keys() == paths.keys()
    for path, methods in routes.items():
        assert {method.lower() for method in methods} - {"head"} == set(paths[path])


SCALE = {name: value for name, value in STEP.items() if name != "gpus"}
ANSWERS = [
    ("simulate", STEP, "simulate_answer"),
    ("scale", SCALE | {"gpus": "8,16"}, "scale_answer"),
    ("views/step", STEP, "step_view"),
    ("views/scale", STEP | {"counts": [8, 16]}, "scale_view"),
    ("views/budget", {"cluster": "dgx-h100", "days": 3}, "budget_view"),
    ("why", STEP, "why"),
    ("catalog", {}, "catalog"),
]


@pytest.mark.parametrize(("name", "body", "schema"), ANSWERS, ids=[name for name, _, _ in ANSWERS])
def test_answers_are_what_it_says(name: str, body: dict[str, Any], schema: str) -> None:
    status, data = asked(name, body)
    assert status == 200
    validator({"$ref": f"#/components/schemas/{schema}"}).validate(data)
    if name in ("simulate", "scale"):
        validator({"$ref": f"#/components/schemas/{name}_arguments"}).validate(body)


def test_errors_and_wrong_bodies_are_what_it_says() -> None:
    status, data = asked("simulate", STEP | {"tp": 3})
    assert status == 422
    validator({"$ref": "#/components/schemas/Error"}).validate(data)
    arguments = validator({"$ref": "#/components/schemas/simulate_arguments"})
    for wrong in ({"model": "no-model"}, {"tp": "x"}, {"sharding": "zero9"}, {"unknown": 1}):
        assert not arguments.is_valid(STEP | wrong)
