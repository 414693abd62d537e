"""`python -m t3d` is the same as `t3d`."""

import sys

from t3d.app.cli import main

sys.exit(main())
