"""Training of n-gram LMs on Spark clusters.

Spark moves data; the C++ core counts, discounts and scores every n-gram with the same code as on
one machine. Counts and probabilities are bit-identical to the local trainer's, because everything
that a number depends on is first brought into one partition:

    text        -> runs of counts      each executor tokenizes and counts its part
    [shuffle]      by an n-gram's first two symbols: counts are complete, as are those of prefixes
    parts       -> n_r, c(w), C(w)     sums over parts; the driver gets n_r and one row per symbol
    [shuffle]      by a context's last symbol: h and its suffix h' are in the same bucket, so
                   that both 1 - sum P(w|h) and 1 - sum P(w|h') are known
    buckets     -> P(w|h), bow(h)
    [shuffle]      sort by order and symbols: a stream that one process writes as the LM file

Pruning adds a shuffle for p(h) (by first symbols) and one for the scores (by context), propagates
scores to sub-n-grams, and finds a threshold for a size by histograms. The driver never holds counts
or n-grams of order 2 and above, until it assembles the file (SparkLM.save). If the finished LM
exceeds its memory, use SparkLM.save_parts, and `assemble` on another machine.
"""

from lattice_bpd_spark.count import SparkCounts, count_corpus
from lattice_bpd_spark.estimate import train_counts
from lattice_bpd_spark.lm import SparkLM, assemble
from lattice_bpd_spark.prune import prune_lm
from lattice_bpd_spark.read import SparkCorpus, read_corpus
from lattice_bpd_spark.session import start_session

__all__ = [
    "SparkCorpus",
    "SparkCounts",
    "SparkLM",
    "assemble",
    "count_corpus",
    "prune_lm",
    "read_corpus",
    "start_session",
    "train_counts",
]
