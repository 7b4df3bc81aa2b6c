"""Homes and temporary folders of their own: the client writes into both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from platformdirs import user_cache_path


@pytest.fixture(scope="module", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(user_cache_path()))  # what was mined from data is not mined again
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        yield
