"""Which board a name means: folders, precedence, clashes, broken files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.boards.folders import config_folder, packaged_folder, runtime_folder, search_folders
from harness.boards.registry import load_registry
from harness.errors import ConfigError

Write = Callable[..., Path]


def local(name: str, more: str = "") -> str:
    return f"metadata: {{name: {name}}}\ntransport: {{kind: local}}\n{more}"


def test_usual_folders_in_their_order(tmp_path: Path) -> None:
    assert [folder.origin for folder in search_folders()] == ["./boards", "user", "packaged"]
    assert search_folders()[1].path == tmp_path / "config" / "boards"


def test_configuration_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOARDTUNE_CONFIG_HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert config_folder() == Path.home() / ".config" / "boardtune"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg-test")
    assert config_folder() == Path("/etc/xdg-test/boardtune")


def test_repository_folder_that_is_also_the_working_folder_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packaged_folder().parent)
    assert [folder.origin for folder in search_folders()] == ["./boards", "user"]
    assert "local" in load_registry().names()


def test_packaged_boards_are_all_well() -> None:
    registry = load_registry([packaged_folder()])
    assert [str(entry.error) for entry in registry.entries if entry.error is not None] == []
    assert registry.get("local").transport.kind == "local"


def test_first_folder_wins_with_a_notice(write: Write, tmp_path: Path) -> None:
    mine = write("local.yaml", local("local", "noise: dedicated\n"))
    users = write("x.yaml", local("local"), folder=tmp_path / "config" / "boards")
    registry = load_registry()
    assert registry.entry("local").path.resolve() == mine
    assert registry.get("local").noise == "dedicated"
    assert registry.names().count("local") == 1
    assert any(str(users) in notice for notice in registry.notices)
    assert any(str(packaged_folder()) in notice for notice in registry.notices)


def test_two_files_of_one_folder_with_one_name_are_both_refused(write: Write) -> None:
    write("one.yaml", local("pi"))
    write("two.yaml", local("pi"))
    registry = load_registry()
    assert "pi" not in registry.names()
    with pytest.raises(ConfigError) as caught:
        registry.get("pi")
    assert "one.yaml:3" in str(caught.value)
    assert "two.yaml:3" in str(caught.value)
    assert "another metadata.name" in caught.value.hint


def test_broken_file_hurts_only_itself(write: Write) -> None:
    write("good.yaml", local("good"))
    write("bad.yaml", local("bad", "noise: quiet\n"))
    write("worse.yaml", "metadata: [\n")
    registry = load_registry()
    assert registry.get("good").name == "good"
    assert {entry.name for entry in registry.entries if entry.error is not None} == {"bad", "worse"}
    for name, line in (("bad", 5), ("worse", 4)):
        with pytest.raises(ConfigError) as caught:
            registry.get(name)
        assert caught.value.where.endswith(f"{name}.yaml:{line}")


def test_broken_file_is_not_passed_over_for_a_packaged_board(write: Write) -> None:
    write("local.yaml", "metadata: [\n")
    registry = load_registry()
    assert "local" not in registry.names()
    with pytest.raises(ConfigError, match="not valid YAML"):
        registry.get("local")


def test_unknown_name_is_told_with_the_nearest(write: Write) -> None:
    write("rpi5.yaml", local("rpi5"))
    with pytest.raises(ConfigError) as caught:
        load_registry().get("rpi4")
    assert "did you mean 'rpi5'?" in caught.value.hint
    assert "looked for in: boards" in caught.value.hint


def test_only_yaml_files_of_the_folder_itself_are_boards(write: Write) -> None:
    write("a.yaml", local("a"))
    write("b.yml", local("b"))
    write("c.txt", "")
    write(".hidden.yaml", "")
    write("templates/d.yaml", local("d"))
    (Path("boards") / "folder.yaml").mkdir()
    registry = load_registry([Path("boards")])
    assert registry.names() == ("a", "b")
    assert all(entry.error is None for entry in registry.entries)


def test_missing_folders_are_no_mistake(tmp_path: Path) -> None:
    assert load_registry([tmp_path / "nowhere"]).entries == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_unreadable_folder_is_a_notice(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o000)
    assert "cannot be listed" in load_registry([folder]).notices[0]


def test_dangling_link_is_listed_as_broken(tmp_path: Path) -> None:
    folder = tmp_path / "boards"
    folder.mkdir()
    (folder / "gone.yaml").symlink_to(tmp_path / "nowhere")
    (entry,) = load_registry([folder]).entries
    assert entry.error is not None
    assert "leads nowhere" in entry.error.hint


def test_paths_are_relative_to_the_file_that_says_them(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        "pi.yaml",
        "metadata: {name: pi}\n"
        "transport: {kind: ssh, host: pi, key: keys/id, workdir: bt, "
        "password: 'file:secret', passphrase: {file: ~/p}}\n"
        f"canary: {{model: own.onnx, sha256: {'a' * 64}}}\n",
    )
    board = load_registry().get("pi")
    monkeypatch.chdir("/")
    folder = path.parent
    transport = board.transport
    assert transport.kind == "ssh"
    assert transport.key == folder / "keys" / "id"
    assert transport.password is not None
    assert transport.password.name == str(folder / "secret")
    assert transport.passphrase is not None
    assert transport.passphrase.name == str(Path.home() / "p")
    assert transport.workdir == "bt"
    assert board.canary.model == str(folder / "own.onnx")


def test_lock_folder_is_private_and_the_same_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOARDTUNE_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    folder = runtime_folder()
    assert tmp_path not in folder.parents
    assert str(os.getuid()) in folder.name
    assert folder.stat().st_mode & 0o077 == 0


def test_lock_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOARDTUNE_RUNTIME_DIR", str(tmp_path / "file" / "locks"))
    with pytest.raises(ConfigError, match="cannot be made") as caught:
        runtime_folder()
    assert "BOARDTUNE_RUNTIME_DIR" in caught.value.hint
