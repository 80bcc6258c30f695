"""Quantizer tests keep their statistics in a folder of their own, so that no test finds another run's."""

from __future__ import annotations

import pytest

from harness.boards.folders import CACHE_VARIABLE


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield
