"""These tests keep their statistics and the host lock to themselves."""

from __future__ import annotations

import pytest

from harness.boards.folders import CACHE_VARIABLE


@pytest.fixture(autouse=True, scope="session")
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        patch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield
