"""How large an input may be. Beyond these an input is refused before the work begins, in one sentence.

Memory and CPU beside them are measured by `benchmarks/large_inputs.py`, at the sizes that docs/reference/limits.md
names; up to the limits themselves they are extrapolated, as both grow in proportion.
"""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30

MOST_TOML_BYTES = 16 * MIB
"""Of a job, model, cluster, profile, study, site or grid. They are written by hand; a list of 10^5 numbers is 1 MB, and
the parser takes 0.6 s of CPU and up to 11 times its size for each MB."""
MOST_JSON_BYTES = 128 * MIB
"""Of a document that is parsed as a whole: records, Hugging Face configs, the state of a sweep. 10^4 records are 40 MB;
with its objects a document of records takes 3.5 times its size."""
MOST_CSV_BYTES = 512 * MIB
"""Of runs or bandwidths: 10^6 rows of 500 bytes. The text is in memory twice while it is decoded."""
MOST_ROWS = 1_000_000
"""Of runs or bandwidths in all files together; each takes 2.3 kB, because repeats are one run wherever they are."""
MOST_FITTED_ROWS = 20_000
"""Of runs to calibrate on: a fit predicts all of them again for each value of each parameter. Judged, not measured: 100
runs of four models on three GPUs take 81 s of CPU."""
MOST_POINTS = 100_000
"""Of the grids of all studies that are run together: plans to simulate, at 17 ms of CPU and 7 kB each. More are
probably a mistake."""
MOST_LISTED_PLANS = 1_000
"""Of a search: the order of so many plans is certain only once they, and all that may be among them, are simulated."""
MOST_RUNS = 10_000
"""Of a sweep: each is a folder of its own, and is trained for real."""
MOST_TRACES = 4_096
"""Trace files of one job."""
MOST_TRACE_BYTES = 64 * GIB
"""Of all traces of one job, unpacked: half an hour of one core."""
MOST_KERNELS = 20_000_000
"""Kernels, copies and launches of all traces of one job that are kept in memory, at about 140 bytes each: 3 GB.
Events of the host, which are most of a trace, are counted and dropped."""
WRITER_S = 10.0
"""How long a named pipe that nobody has opened for writing is waited for."""
LONGEST_TRACE_NS = 1 << 52
"""Of an event of a trace, 52 days: what is longer is taken for a broken clock."""
