"""`python -m t3d` is the same as `t3d`."""

import sys

if not sys.flags.safe_path:
    del sys.path[
        0
    ]  # python -m has put the folder there: a file that is called like a library would be run in its place

from t3d.app.cli import main

sys.exit(main())
