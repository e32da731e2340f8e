"""`python -m saggar`: the command line without the installed script."""

from __future__ import annotations

import sys

from saggar.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
