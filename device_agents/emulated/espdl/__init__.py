"""``.espdl`` models on the host: reader, integer interpreter, lints. Needs numpy only, neither torch nor ESP-PPQ."""
