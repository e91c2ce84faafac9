"""Records on disk: one file a question, there whole or not at all, named by everything its answer depends on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import InitVar, asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import knee
from knee.base.errors import SpecError
from knee.base.files import digest, make_folder, read_text, write_text
from knee.commands.study.questions import Options, Question, answers, specs_of
from knee.specs.catalog import KINDS, ROOT
from knee.specs.load import kept_for_a_question
from knee.trust.validation.bundled_runs import CarriedFidelity, carried_fidelity

SEAL = "seal"
IMPOSSIBLE = "impossible"
TOGETHER = 64
"""Most questions that are answered in one call besides the one asked: a study that is interrupted keeps the rest."""
KEPT, RECORDS = ".kept", "records"
"""Folders below that of a study: budgets and fidelity, and what was simulated."""

Specs = tuple[str, str, str, Options]
"""Names of a model, a cluster and a profile, and what is changed in them."""


@dataclass(slots=True)
class Store:
    """A folder of records; without one, what is answered is remembered only."""

    folder: Path | None = None
    warn: Callable[[str], None] = print
    coming: InitVar[Iterable[Question]] = ()
    """What will be asked, in this order: the next questions about the same specs are answered in one call."""
    made: int = 0
    reused: int = 0
    _asked: set[str] = field(default_factory=set)
    _remembered: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers, where there is no folder to read them from again."""
    _before: frozenset[str] = frozenset()
    """Keys of the records that lay here from the beginning; a second process may add others."""
    _coming: dict[Specs, list[Question]] = field(default_factory=dict)
    _keys: dict[Question, str] = field(default_factory=dict)
    _ahead: dict[Question, Future[None]] = field(default_factory=dict)
    """Questions that a pool of processes answers into the folder."""

    def __post_init__(self, coming: Iterable[Question]) -> None:
        if self.folder is not None:
            self._before = frozenset(path.stem for path in make_folder(self.folder).glob("*.json"))
        for question in dict.fromkeys(coming):
            self._coming.setdefault(_specs(question), []).append(question)

    @property
    def before(self) -> int:
        """Records that lay here from the beginning."""
        return len(self._before)

    def answer_ahead(self, pool: Executor) -> None:
        """Have a pool of processes answer what is missing, in the order in which it will be asked."""
        for group in self._coming.values():
            missing = [question for question in group if not self._has(self._key(question))]
            for start in range(0, len(missing), TOGETHER):
                some = missing[start : start + TOGETHER]
                self._ahead |= dict.fromkeys(some, pool.submit(_answer_into, self.folder, some))

    def record(self, question: Question) -> dict[str, Any]:
        """The answer that lies here, or a new one, which then does."""
        if question in self._ahead:
            wait([self._ahead.pop(question)])  # where it has failed, the answer is made here, or its error raised
        key = self._key(question)
        found = self._remembered.get(key) if self.folder is None else self._read(self.folder / f"{key}.json", key)
        record = found or self._made(question)
        if key not in self._asked:
            self._asked.add(key)
            lay_here = found is not None and key in self._before
            self.reused, self.made = self.reused + lay_here, self.made + (not lay_here)
        return record

    def _made(self, question: Question) -> dict[str, Any]:
        """The new record of a question; those of the next questions about the same specs are made with it."""
        missing = (other for other in self._coming.get(_specs(question), ()) if not self._has(self._key(other)))
        made = answers(dict.fromkeys((question, *islice(missing, TOGETHER))))
        return {one: self._keep(one, found) for one, found in made.items()}[question]

    def _key(self, question: Question) -> str:
        if question not in self._keys:
            self._keys[question] = key_of(question)
        return self._keys[question]

    def _has(self, key: str) -> bool:
        return key in self._remembered if self.folder is None else (self.folder / f"{key}.json").exists()

    def _keep(self, question: Question, found: dict[str, Any] | SpecError) -> dict[str, Any]:
        answered = {"kind": "simulated", IMPOSSIBLE: found.message} if isinstance(found, SpecError) else found
        key, made = self._key(question), {"knee": knee.__version__, "engine": engine()}
        text = json.dumps(sealed(answered | {"question": asdict(question), "key": key, "made": made}), allow_nan=False)
        record: dict[str, Any] = json.loads(text)  # as it will be read: tuples are lists
        if self.folder is None:
            self._remembered[key] = record
        else:
            write_text(self.folder / f"{key}.json", text + "\n")
        return record

    def _read(self, path: Path, key: str) -> dict[str, Any] | None:
        """None where there is none, or none that is whole; of the latter the user hears."""
        try:
            text = read_text(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.warn(f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not text'}); it is computed again")
            return None
        why = damage(text, key)
        if why is not None:
            self.warn(f"{path} is damaged ({why}); it is computed again")
            return None
        record: dict[str, Any] = json.loads(text)
        return record


def _answer_into(folder: Path | None, questions: Sequence[Question]) -> None:
    store = Store(folder)
    for question, found in answers(questions).items():
        store._keep(question, found)


def damage(text: str, key: str) -> str | None:
    """What is wrong with a record's text, if anything."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "it is incomplete or not JSON"
    if not isinstance(found, dict) or SEAL not in found:
        return "it has no checksum"
    if found[SEAL] != sealed(found)[SEAL]:
        return "its content does not match its checksum"
    return None if found.get("key") == key else "it is the record of another run"


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the digest of its content."""
    rest = {name: value for name, value in record.items() if name != SEAL}
    return rest | {SEAL: digest(rest)}


def _specs(question: Question) -> Specs:
    return question.model, question.cluster, question.profile, question.sets


def key_of(question: Question) -> str:
    """A digest of the question, of every value behind the names in it, and of the engine's own text."""
    specs = _digest_of_specs((question.model, question.cluster, question.profile), question.sets)
    return digest({"question": asdict(question), "specs": specs, "engine": engine()})[:24]


@kept_for_a_question
def _digest_of_specs(names: tuple[str, str, str], sets: Options) -> str:
    return digest([asdict(part.spec) for part in specs_of(names, sets)])


@cache
def engine() -> str:
    """A digest of all code and of the data that every answer rests on: no answer of another version is ever reused."""
    root = Path(knee.__file__).parent
    files = [*root.rglob("*.py"), *(root / "catalog").glob("*.toml"), *(root / "catalog" / "validation").iterdir()]
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.relative_to(root).as_posix().encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def cached_fidelity(folder: Path) -> CarriedFidelity:
    """How knee does on the published runs it carries: kept in a folder while neither engine nor catalogue changes."""
    entries = sorted(path for kind in KINDS for path in (ROOT / f"{kind}s").glob("*.toml"))
    key = digest([engine(), *(path.read_text(encoding="utf-8") for path in entries)])[:24]
    found = cached(make_folder(folder) / "fidelity.json", key, lambda: asdict(carried_fidelity()))
    return TypeAdapter(CarriedFidelity).validate_python(found)


def cached(path: Path, key: str, make: Callable[[], Any]) -> Any:
    """What lies in a file under this key, if it is whole; else what is made, which then does."""
    with contextlib.suppress(OSError, ValueError):
        text = read_text(path)
        if damage(text, key) is None:
            return json.loads(text)["found"]
    text = json.dumps(sealed({"key": key, "found": make()}), allow_nan=False)
    write_text(path, text + "\n")
    return json.loads(text)["found"]  # as it will be read: tuples are lists
