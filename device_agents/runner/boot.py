# Becomes __main__.py of the zipapp. Any Python, however old, must be able to read it and say what is wrong.
import sys

if sys.version_info < (3, 8):
    sys.stderr.write("boardtune-runner: needs Python 3.8 or newer, this is {}\n".format(sys.version.split()[0]))
    sys.exit(3)

import importlib

sys.exit(importlib.import_module("runner").main(sys.argv[1:]))
