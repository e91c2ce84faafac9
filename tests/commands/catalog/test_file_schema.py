"""Schemas and complete files: what the loaders declare, held to every file that is shipped."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from files_page import TABLES, field_rows, with_tables

import knee
from knee.commands.catalog.api import FILE_KINDS, FileKind, file_schema
from knee.commands.catalog.result import file_entry
from knee.commands.main import main
from knee.specs.catalog import ALIASES, KINDS, ROOT, Kind, entry_names
from knee.specs.fields import descriptions
from knee.specs.load import _read

ENTRIES = [(kind, name) for kind in KINDS for name in entry_names(kind)]
DOCS = Path(__file__).parents[3] / "docs"


@cache
def validator(kind: FileKind) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(file_schema(kind))
    return jsonschema.Draft202012Validator(file_schema(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_follows_its_schema(kind: FileKind) -> None:
    for path in (ROOT / f"{kind}s").glob("*.toml"):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            check = validator("cluster" if kind == "gpu" and "gpu" in entry else kind)  # beside the GPU that it is of
            written = {key: value for key, value in entry.items() if key not in ALIASES}  # the catalogue's own
            assert [error.message for error in check.iter_errors(written)] == [], name


@pytest.mark.slow
def test_every_study_follows_its_schema() -> None:
    check = validator("study")
    for path in (ROOT / "studies").glob("*.toml"):
        if path.stem != "uncounted":
            assert list(check.iter_errors(tomllib.loads(path.read_text(encoding="utf-8")))) == [], path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("cluster", 'base = "dgx-h100"\n[fabric]\nnic_byte_per_s = "1 GB/s"'),
        ("gpu", 'tdp_w = "300 W"'),
        ("model", 'base = "llama2-7b"\nmlp = "relu"'),
        ("profile", 'kernels = "eager"'),
        ("study", "gpus = 0"),
        ("site", "partitions = 'a'"),
    ],
)
def test_a_schema_refuses_what_the_loader_refuses(kind: FileKind, text: str) -> None:
    assert not validator(kind).is_valid(tomllib.loads(text))


def test_files_of_the_page_follow_their_schemas() -> None:
    for block in (DOCS / "files.md").read_text(encoding="utf-8").split("```toml")[1:]:
        raw = tomllib.loads(block.split("```")[0])
        kind: FileKind = "cluster" if raw.keys() & {"fabric", "node"} else "gpu"
        assert [error.message for error in validator(kind).iter_errors(raw)] == []


@pytest.mark.parametrize(("title", "spec"), TABLES)
def test_every_field_is_described(title: str, spec: type) -> None:
    assert {name for name, _, _ in field_rows(spec)} - descriptions(spec).keys() - {"series"} == set(), title


def test_the_page_of_files_is_up_to_date() -> None:
    page = (DOCS / "files.md").read_text(encoding="utf-8")
    assert page == with_tables(page), "run make docs"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_a_complete_file_loads_again(kind: Kind, name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(knee.catalog_entry(name, kind=kind).to_toml(), encoding="utf-8")
    read, known = _read(kind, str(path), ()), _read(kind, name, ())
    assert (read.spec, read.sources) == (known.spec, known.sources)
    assert file_entry(str(path)).kind == kind
    assert validator(kind).is_valid(tomllib.loads(path.read_text(encoding="utf-8")))


def test_the_command_prints_both() -> None:
    def printed(*words: str) -> str:
        done = CliRunner().invoke(main, ["catalog", *words])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    assert printed("h100-sxm", "--toml") == knee.catalog_entry("h100-sxm").to_toml()
    for kind in FILE_KINDS:
        assert json.loads(printed("--schema", kind)) == json.loads(json.dumps(knee.catalog_schema(kind)))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--toml"], "missing-argument"),
        (["h100-sxm", "--toml", "--json"], "contradiction"),
        (["h100-sxm", "--schema", "gpu"], "contradiction"),
        (["constants", "--toml"], "unknown-choice"),
    ],
)
def test_options_that_exclude_each_other(words: list[str], code: str) -> None:
    done = CliRunner().invoke(main, ["catalog", *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error:" in done.stderr, code
