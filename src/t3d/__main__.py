"""`python -m t3d` is the same as `t3d`."""

import sys

if not sys.flags.safe_path:  # python -m has put the folder first: a file named like a library would run in its place
    del sys.path[0]

from t3d.app.cli import main

sys.exit(main())
