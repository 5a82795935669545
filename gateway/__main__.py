"""`python -m gateway`."""

from __future__ import annotations

import sys

from inferway.beginning import begin

if __name__ == "__main__":
    begin()
    # All that takes long to import comes after it.
    from .process import main

    sys.exit(main())
