"""``python -m chunkstore``: the same as the command ``chunkstore``."""

from __future__ import annotations

import sys

from chunkstore.cli import main

if __name__ == "__main__":
    sys.exit(main())
