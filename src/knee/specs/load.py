"""Everything that turns names, files and options into specs: the door to the modules beside this one."""

from knee.specs.catalog import Source
from knee.specs.fields import split_overrides
from knee.specs.make import (
    Loaded,
    catalog_entries,
    default_profile_note,
    describe,
    load_cluster,
    load_job,
    load_model,
    load_profile,
    make_job,
    read_tree,
)

__all__ = [
    "Loaded",
    "Source",
    "catalog_entries",
    "default_profile_note",
    "describe",
    "load_cluster",
    "load_job",
    "load_model",
    "load_profile",
    "make_job",
    "read_tree",
    "split_overrides",
]
