"""One process with torch for all files that run layouts: importing torch takes longer than most of them."""

from __future__ import annotations

from importlib import import_module

import pytest

from .torch_pool import TorchPool, TorchWork

FILES = ("test_parity", "test_expert_parity", "test_fake_ranks")
"""Each has ``torch_work()``."""


@pytest.fixture(scope="session")
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchPool:
    """The work of those files that were asked for."""
    asked, work = {item.path.stem for item in request.session.items}, TorchWork()
    for name in FILES:
        if name in asked:
            work.add(import_module(f"{__package__}.{name}").torch_work())
    return TorchPool(work, tmp_path_factory.mktemp("torch"))
