"""``extends:``: deep merge, and everything that can be wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.boards.registry import load_board_file, load_registry
from harness.errors import ConfigError

Write = Callable[..., Path]

FAMILY = """\
apiVersion: boardtune/v1
kind: BoardFamily
metadata: {name: pi-family, sku: pi, labels: {maker: rpi, arch: arm64}}
transport: {kind: ssh, host: unset.local, user: pi, password: {env: PI_PASSWORD}}
runtime: {threads: {intra: 4}, session_config: {a: "1", b: "2"}}
limits: {max_model_bytes: 8MB, data_types: [float32, int8]}
noise: shared
"""


@pytest.fixture
def family(write: Write) -> Path:
    return write("family.yaml", FAMILY, header=False)


def test_board_takes_what_it_does_not_say_from_its_family(write: Write, family: Path) -> None:
    write(
        "pi.yaml",
        "extends: pi-family\nmetadata: {name: pi, labels: {shelf: top, arch: arm}}\n"
        "transport: {host: 10.0.0.7}\nruntime: {session_config: {b: '3'}}\nlimits: {data_types: [int8]}\n",
    )
    board = load_registry().get("pi")
    assert board.metadata.model_dump() == {
        "name": "pi",
        "sku": "pi",
        "labels": {"maker": "rpi", "arch": "arm", "shelf": "top"},
    }
    assert board.transport.kind == "ssh"
    assert (board.transport.host, board.transport.user) == ("10.0.0.7", "pi")
    assert board.runtime.threads.intra == 4
    assert board.runtime.session_config == {"a": "1", "b": "3"}
    assert board.limits.max_model_bytes == 8_000_000
    assert board.limits.data_types == ("int8",), "lists are replaced, not joined"
    assert board.noise == "shared"


def test_empty_value_takes_a_value_of_the_family_away(write: Write, family: Path) -> None:
    write("pi.yaml", "extends: pi-family\nmetadata: {name: pi}\nlimits: {max_model_bytes: }\nnoise:\n")
    board = load_registry().get("pi")
    assert board.limits.max_model_bytes is None
    assert board.noise == "dedicated"


def test_another_transport_replaces_that_of_the_family(write: Write, family: Path) -> None:
    write("pi.yaml", "extends: pi-family\nmetadata: {name: pi}\ntransport: {kind: local}\n")
    assert load_registry().get("pi").transport.model_dump() == {"kind": "local", "python": None, "workdir": None}


def test_families_of_families_and_boards_can_be_extended(write: Write, family: Path) -> None:
    write("a.yaml", "extends: pi-family\nmetadata: {name: a}\nrecovery: {retries: 7}\n")
    write("b.yaml", "extends: a\nmetadata: {name: b}\nruntime: {threads: {intra: 2}}\n")
    board = load_registry().get("b")
    assert (board.name, board.recovery.retries, board.runtime.threads.intra, board.noise) == ("b", 7, 2, "shared")


def test_family_may_be_in_another_folder_and_is_no_board(write: Write, tmp_path: Path) -> None:
    write("family.yaml", FAMILY, header=False, folder=tmp_path / "config" / "boards")
    path = write("pi.yaml", "extends: pi-family\nmetadata: {name: pi}\n")
    registry = load_registry()
    assert registry.get("pi") == load_board_file(path)
    assert "pi-family" not in registry.names()
    with pytest.raises(ConfigError, match="is a family, not a board"):
        registry.get("pi-family")


def test_name_is_never_inherited(write: Write, family: Path) -> None:
    write("pi.yaml", "extends: pi-family\nmetadata: {sku: x}\n")
    with pytest.raises(ConfigError, match=r"metadata\.name is missing"):
        load_registry().get("pi")


@pytest.mark.parametrize(
    ("extends", "message", "hint"),
    [
        ("pi-famly", "extends 'pi-famly', which is unknown", "did you mean 'pi-family'?"),
        ("pi", "in a circle: pi -> pi", "extend nothing"),
        ("broken", "extends 'broken', whose file is broken", "broken.yaml:3"),
    ],
)
def test_wrong_base(write: Write, family: Path, extends: str, message: str, hint: str) -> None:
    write("broken.yaml", "metadata: 3\n")
    path = write("pi.yaml", f"metadata: {{name: pi}}\nextends: {extends}\n")
    with pytest.raises(ConfigError) as caught:
        load_registry().get("pi")
    assert caught.value.where.endswith(f"{path.name}:4")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_longer_circle(write: Write) -> None:
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        write(f"{name}.yaml", f"metadata: {{name: {name}}}\nextends: {base}\n")
    registry = load_registry()
    for name, circle in (("a", "a -> b -> c -> a"), ("b", "b -> c -> a -> b")):
        with pytest.raises(ConfigError, match=circle):
            registry.get(name)


def test_mistake_in_a_family_is_told_with_the_familys_line(write: Write) -> None:
    write("family.yaml", FAMILY + "state: {governer: performance}\n", header=False)
    write("pi.yaml", "extends: pi-family\nmetadata: {name: pi}\n")
    registry = load_registry()
    for name in ("pi", "pi-family"):
        with pytest.raises(ConfigError, match="unknown key 'governer' in state") as caught:
            registry.get(name)
        assert caught.value.where.endswith("family.yaml:8")


def test_incomplete_family_is_well(write: Write) -> None:
    write(
        "f.yaml",
        "apiVersion: boardtune/v1\nkind: BoardFamily\nmetadata: {name: f}\ntransport: {user: pi}\n",
        header=False,
    )
    write("pi.yaml", "extends: f\nmetadata: {name: pi}\ntransport: {kind: ssh, host: pi}\n")
    registry = load_registry()
    assert registry.entry("f").error is None
    assert registry.get("pi").transport.model_dump()["user"] == "pi"
