"""``python -m amos`` is the command line."""

import sys

from amos.cli import main

if __name__ == "__main__":
    sys.exit(main())
