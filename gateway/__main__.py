"""`python -m gateway`."""

from __future__ import annotations

import sys

from inferway.early_stop import end_when_told

if __name__ == "__main__":
    end_when_told()
    # What takes long to import comes after it.
    from .process import main

    sys.exit(main())
