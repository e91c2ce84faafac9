"""``knee.compare``: measured, simulated and published records side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knee.errors import InputError, either
from knee.inputs.argument_types import checked_arguments
from knee.record.side_by_side import FORM, checked_record, compared, differences, read_record, refuse_mixed
from knee.results.compare_result import ComparedValue, Comparison
from knee.results.result import Result

RecordLike = str | Path | Mapping[str, Any] | Result
"""A record: its file, the folder of its run, its keys and values, or a result of ``knee.simulate`` or
``knee.read_traces``."""


@checked_arguments
def compare(*records: RecordLike) -> Comparison:
    """Compare records side by side, with the difference of each from the first.

    A record is a file of ``knee simulate --json`` or ``knee trace --json``, the folder of a ``knee train`` run (or its
    ``record.json``), a dictionary with the same keys, or a result of ``knee.simulate`` or ``knee.read_traces``. At
    least two records are needed. MFU values with different FLOP conventions are refused.

    >>> import knee
    >>> one, two = (knee.simulate("llama2-7b", cluster="dgx-h100", gpus=n, local_batch=2) for n in (8, 16))
    >>> both = knee.compare(one, two)
    >>> both.values[0].quantity.key, both.values[0].difference_frac[1] > 0.5
    ('tokens_per_s', True)
    >>> both.notes[0]
    'gpus differs: 8, 16'
    """
    if len(records) < 2:
        raise InputError(
            "a comparison needs at least two records",
            hint=either('knee.compare("run", "simulated.json")', "`knee compare run simulated.json`"),
            code="missing-argument",
            field="records",
        )
    names = tuple(
        str(record) if isinstance(record, (str, Path)) else f"record {number}"
        for number, record in enumerate(records, start=1)
    )
    found = tuple(_record(name, record) for name, record in zip(names, records, strict=True))
    refuse_mixed(names, found)
    return Comparison(
        names=names,
        records=found,
        values=tuple(
            ComparedValue(quantity=row, values=tuple(values), difference_frac=tuple(apart))
            for row, values, apart in compared(found)
        ),
        notes=tuple(differences(found)),
    )


def _record(name: str, record: RecordLike) -> dict[str, Any]:
    if isinstance(record, (str, Path)):
        return read_record(Path(record))
    data = record.to_dict() if isinstance(record, Result) else dict(record)
    if isinstance(record, Result) and "kind" not in data:
        raise InputError(f"{name} is a {type(record).__name__}, not a record", hint=FORM, code="not-a-record")
    try:
        plain = json.loads(json.dumps(data))  # as it would be read from a file: tuples are lists
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"{name} is not a JSON document", hint=FORM, code="not-json") from None
    return checked_record(plain, name)
