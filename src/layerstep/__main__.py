"""`python -m layerstep` is `layerstep`."""

import os
import sys

if not sys.flags.safe_path:  # it is the working directory, whose files are not ours to import
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from layerstep.cli import main

sys.exit(main())
