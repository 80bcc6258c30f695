"""``boardtune audit``: what can be known of a model, its data and its boards before anything is quantized."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import json_option, preprocess_option, print_json, set_dim_option


@click.command("audit", short_help="Say what in a model, its data or its boards will make trouble.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--board", "boards", multiple=True, metavar="NAME", help="Board to check the model against; repeatable.")
@click.option("--calib", help="Calibration set: .npz, folder, image folder, or module:function; gives ranges.")
@click.option("--eval", help="Evaluation set, same forms; compared with the calibration set.")
@preprocess_option
@set_dim_option
@json_option
def command(
    model: Path,
    boards: tuple[str, ...],
    calib: str | None,
    eval: str | None,
    preprocess: Path | None,
    set_dim: tuple[str, ...],
    as_json: bool,
) -> None:
    """Look at MODEL: operators, parameters, MACs, ranges, and findings with what to do about each. No board is
    touched; exit code 0 whatever is found."""
    from harness.audit.run import AuditJob, audit
    from harness.audit.text import audit_lines
    from harness.errors import ConfigError
    from harness.quantize.shapes import parse_set_dims

    if eval is not None and calib is None:
        raise ConfigError("--eval is compared with a calibration set", hint="give it with --calib")
    found = audit(AuditJob(model, boards, calib, eval, preprocess, parse_set_dims(set_dim)))
    if as_json:
        print_json(found.to_json())
        return
    for notice in found.notices:
        click.echo(f"note: {notice}", err=True)
    for line in audit_lines(found):
        click.echo(line)
