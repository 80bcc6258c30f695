"""Run by a vendor's own interpreter: the standard library, numpy, and that vendor's package only; nothing of boardtune.

A program has ``warm()``, which imports what takes long and returns versions by package, and ``quantize(job, tell)``,
which writes ``job["out"]`` and returns ``notices`` and its resolved ``settings`` as plain JSON; ``tell(phase)`` says
what comes next.
"""
