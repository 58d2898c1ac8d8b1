"""What the command `airlock` and `python -m airlock` start: the command line, also if Ctrl-C comes early."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C ends it without a traceback."""
    try:
        from airlock.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: Ctrl-C.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
