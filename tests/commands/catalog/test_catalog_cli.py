"""``knee catalog``: every name, every value, every source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from knee.commands.catalog.result import budget_tables
from knee.commands.main import main
from knee.specs.catalog import KINDS, SOURCE_KINDS, entry_names

ENTRIES = [name for kind in KINDS for name in entry_names(kind)]
OTHERS = [name for entries in budget_tables().values() for name in entries]


def knee(*args: str) -> Result:
    return CliRunner().invoke(main, ["catalog", *args])


def test_every_name_has_a_line() -> None:
    result = knee()
    assert result.exit_code == 0
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ")]
    assert set(first_words) == {*ENTRIES, *OTHERS, "constants"}
    assert len(first_words) == len(ENTRIES) + len(OTHERS) + 1


def test_names_as_json() -> None:
    data = json.loads(knee("--json").stdout)
    assert data.keys() == {"models", "gpus", "clusters", "profiles", "constants", *budget_tables()}
    assert data["scaling_laws"] == ["besiroglu-2024", "hoffmann-2022", "kaplan-2020"]
    assert data["families"] == ["llama"]
    assert "llama2-7b" in data["models"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ENTRIES, *OTHERS, "constants"])
def test_every_value_has_a_kind_and_a_source(name: str) -> None:
    result = knee(name, "--json")
    assert result.exit_code == 0
    assert knee(name).exit_code == 0
    found = json.loads(result.stdout)
    # Kaplan et al. have a law of each kind; no model shares its name with a run
    assert isinstance(found, list) == (name == "kaplan-2020")
    values = [value for entry in (found if isinstance(found, list) else [found]) for value in entry["values"]]
    assert values
    for value in values:
        assert value.keys() == {"field", "value", "shown", "kind", "source"}
        assert value["kind"] in SOURCE_KINDS
        assert value["source"]


def test_what_was_assumed_of_a_training_run_is_told_from_what_was_published() -> None:
    values = {value["field"]: value for value in json.loads(knee("llama2-7b-2T", "--json").stdout)["values"]}
    assert (values["gpus"]["kind"], values["gpu_hours"]["kind"]) == ("assumed", "published")
    assert "MODEL_CARD" in values["gpu_hours"]["source"]


def test_numbers_are_base_si_for_machines_and_words_for_people() -> None:
    values = {value["field"]: value for value in json.loads(knee("h100-sxm", "--json").stdout)["values"]}
    assert values["hbm_bytes_per_s"]["value"] == 3.35e12
    assert values["hbm_bytes_per_s"]["shown"] == "3.35 TB/s"
    assert "3.35 TB/s" in knee("h100-sxm").stdout


@pytest.mark.parametrize(
    ("name", "guess"),
    [("llama27b", "llama2-7b"), ("dgxh100", "dgx-h100"), ("constant", "constants"), ("hofmann-2022", "hoffmann-2022")],
)
def test_an_unknown_name_gets_the_nearest(name: str, guess: str) -> None:
    result = knee(name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"error: nothing named {name!r} is in the catalogue\nhint: did you mean {guess}?\n"


def test_a_name_like_no_other() -> None:
    assert "hint: `knee catalog` lists all" in knee("zzzzzz").stderr


def test_the_folder_of_a_model_needs_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 1000, **shape}))
    monkeypatch.chdir(tmp_path)
    assert knee("mine").stdout.startswith("model mine:")


def test_a_mistake_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "dgx-h100"\n[fabric]\ntiers = [{ nodes = 4, oversubscription = "2:1" }]\n')
    assert f"error: {file} has " in knee(str(file)).stderr


def test_a_mixture_of_experts_has_total_and_active_parameters() -> None:
    heading = knee("deepseek-v3").stdout.splitlines()[0]
    assert "671 B parameters, 37.6 B active: 61 layers (58 with 256 experts)" in heading
    assert heading.removeprefix("model deepseek-v3: ") in knee().stdout
    counts = json.loads(knee("deepseek-v3", "--json").stdout)["parameters"]
    assert counts == {"total": 671_026_419_200, "active": 37_552_297_472, "mtp": 11_610_068_224}
    dense = json.loads(knee("llama2-7b", "--json").stdout)["parameters"]
    assert dense == {"total": 6_738_415_616, "active": 6_738_415_616, "mtp": 0}
    assert "active" not in knee("llama2-7b").stdout.splitlines()[0]
