"""`python -m lattice_bpd.train.spark`, and the main file for spark-submit."""

import sys

from lattice_bpd.cli.spark import main

if __name__ == "__main__":
    sys.exit(main())
