"""The kinds of input, each in a file of its own."""

from __future__ import annotations

from fuzz.case import Kind
from fuzz.kinds import arguments, readings, records, shards, specs, studies, sweeps, tables, traces

KINDS: tuple[Kind, ...] = (
    *traces.KINDS,
    *specs.KINDS,
    *studies.KINDS,
    *tables.KINDS,
    *records.KINDS,
    *readings.KINDS,
    *sweeps.KINDS,
    *shards.KINDS,
    *arguments.KINDS,
)
