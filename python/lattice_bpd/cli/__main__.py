"""`python -m lattice_bpd.cli` is `lattice-bpd`."""

from __future__ import annotations

import sys

from lattice_bpd.cli import main

sys.exit(main())
