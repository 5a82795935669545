"""`python -m inferway`: the command line for people who run the mesh."""

import sys

from inferway.cli.main import main

sys.exit(main(sys.argv[1:]))
