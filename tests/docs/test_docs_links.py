"""Links lead somewhere, and every page is in the index."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, anchors, links


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_resolve(document: Path) -> None:
    for target in links(document):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name} links to {target}"
        assert path.is_relative_to(ROOT), f"{document.name} links out of the repository: {target}"
        if anchor:
            assert anchor in anchors(path), f"{document.name} links to {target}"


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {target for target in links(index) if not target.startswith("http")}
    assert named == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}, "name it there"


def test_pictures_are_small_enough_for_a_repository() -> None:
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size < 300_000, picture.name
