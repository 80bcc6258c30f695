"""``boardtune show``: what an ONNX file is, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import json_option, print_json

if TYPE_CHECKING:
    from harness.ledger.shown import ShownModel
    from harness.tensors import TensorSpec

_PACKAGES = ("onnx", "onnxruntime", "numpy")


@click.command("show", short_help="Say what a model is, and what it was made from.")
@click.argument("model", type=click.Path(path_type=Path))
@json_option
def command(model: Path, as_json: bool) -> None:
    """Say what MODEL is and, if boardtune exported it, what it was made from. Reads any ONNX
    or .espdl file; runs nothing."""
    from harness.ledger.shown import show_model

    shown = show_model(model)
    if as_json:
        print_json(shown.to_json())
        return
    click.echo(_printable(_headline(shown)))
    for name, text in (*_provenance(shown), *_description(shown)):
        click.echo(f"  {name:<13}{_printable(text)}")


def _headline(shown: ShownModel) -> str:
    found, stamp = shown.description, shown.provenance
    if stamp:
        label, version = stamp.get("label") or found.kind, stamp.get("version", "(unknown)")
        return f"{found.path}: {label}, exported by boardtune {version}"
    made = f", made by {found.producer}" if found.producer else ""
    return f"{found.path}: {found.kind}{made}; no boardtune provenance"


def _provenance(shown: ShownModel) -> Iterator[tuple[str, str]]:
    from harness.ledger.provenance import stamped_json

    stamp = shown.provenance
    if not stamp:
        return
    if shown.intact is not None:
        yield "content", "as it was measured" if shown.intact else "CHANGED since it was measured and exported"
    if "trial" in stamp:
        yield "run", f"{stamp.get('run', '(unknown)')}, trial {stamp['trial'].zfill(4)}"
    if "recipe_sha256" in stamp:
        yield "recipe", f"sha256 {stamp['recipe_sha256']}"
    if "source_file" in stamp:
        yield (
            "made from",
            f"{stamp['source_file']}, quantized elsewhere, sha256 {stamp.get('source_sha256', '(unknown)')}",
        )
    for name, title in (("float_model", "float model"), ("calibration", "calibration"), ("preprocess", "preprocess")):
        if f"{name}_sha256" in stamp:
            file = f"{stamp[name]}, " if stamp.get(name) else ""
            yield title, f"{file}sha256 {stamp[f'{name}_sha256']}"
    versions = stamped_json(stamp, "versions")
    if versions:
        yield "versions", ", ".join(f"{name} {versions[name]}" for name in _PACKAGES if name in versions)
    if "snr_db" in stamp:
        yield "SNR", f"{stamp['snr_db'][:5]} dB against float on calibration samples"
    if "board" in stamp:
        emulated = ", EMULATED" if stamp.get("emulated") == "true" else ""
        yield "measured on", f"{stamp['board']}{emulated}, {stamp.get('runtime', '')}"


def _description(shown: ShownModel) -> Iterator[tuple[str, str]]:
    from harness.units import format_bytes

    found = shown.description
    yield "file", f"{format_bytes(found.size_bytes)}, sha256 {found.sha256}"
    yield "identity", found.identity
    for title, specs in (("input", found.inputs), ("output", found.outputs)):
        for spec in specs:
            yield title, _spec(spec)
    if found.quantized or found.conversions:
        yield "quantized", _counted(found.quantized)
        yield "in float", _counted(found.left_in_float)
        yield "conversions", _counted(found.conversions)
    else:
        yield "operators", _counted(found.left_in_float)
    yield "weights", ", ".join(f"{count:,} {name}" for name, count in found.weights.items()) or "none"
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    yield "format", f"{found.kind}, IR {found.ir_version}" + (f", opsets {opsets}" if opsets else "")


def _spec(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]"


def _printable(text: str) -> str:
    """What a stranger's file holds must not steer the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _counted(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return f"{total} ({', '.join(f'{count} {name}' for name, count in counts.items())})" if counts else "none"
