"""The child of :mod:`harness.sensitivity.rank`: a request as JSON on stdin, phases and the reply as lines on stdout."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from harness.quantize.acceptance import first_line
from harness.quantize.cache import Cache
from harness.quantize.calibrate import Subject
from harness.quantize.child import take_request
from harness.recipes.recipe import Recipe
from harness.sensitivity.rank import rank


def main() -> int:
    request, send = take_request()
    try:
        send({"phase": "ranking the groups"})
        cache = Cache(Path(request["cache"]) if request["cache"] else None)
        subject = Subject.read(Path(request["model"]), Path(request["calibration"]), cache, request["digests"])
        groups = rank(subject, Recipe.from_dict(request["recipe"]), lambda name: send({"phase": name}))
    except Exception as error:
        send({"error": first_line(error)})
        return 0
    send({"groups": [asdict(group) for group in groups]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
