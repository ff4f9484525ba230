"""Strategy "auto": the tree size of highest estimated throughput, chosen at run time."""
