"""`python -P -m saggar`: the command line without the installed script.

Without `-P` the current directory, often a workspace, stands first on the module path. What the interpreter imported before
this file it imported from there; nothing after it is.
"""

# no `from __future__` here: that is an import as well. Both of these are built into the interpreter
import sys
from posix import getcwd

_path = sys.path
if __name__ == "__main__" and not sys.flags.safe_path and _path:
    try:
        _here = getcwd()
    except OSError:
        _here = ""
    if _path[0] in ("", _here):
        del _path[0]

from saggar.cli.main import main  # noqa: E402  # only now is the module path the host's

if __name__ == "__main__":
    sys.exit(main())
