"""``python -m harness`` is ``boardtune``."""

from harness.cli.main import main

if __name__ == "__main__":
    main()
