"""`python -m t3d` is the same as `t3d`."""

import os
import sys

if sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
    del sys.path[0]  # python -m has put it there: a file that is called like a library would be run in its place

from t3d.app.cli import main

sys.exit(main())
