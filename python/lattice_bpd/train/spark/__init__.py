"""Training n-gram LMs beyond one machine, on Spark (extra ``spark``).

Spark moves data; every n-gram is counted, discounted and scored by the C++ core, with the same
code as on one machine. Counts are the local trainer's bit for bit, and so are probabilities,
because all that a number depends on is brought into one place first:

    text        -> runs of counts      each executor tokenises and counts its share
    [shuffle]      by an n-gram's first two symbols: counts are complete, as are those of prefixes
    parts       -> n_r, c(w), C(w)     sums over parts; the driver gets n_r and one row a symbol
    [shuffle]      by a context's last symbol: h and its suffix h' end in the same one, so that
                   1 - sum P(w|h) and 1 - sum P(w|h') are both at hand
    buckets     -> P(w|h), bow(h)
    [shuffle]      sort by order and symbols: a stream that one process turns into the LM file

Pruning adds a shuffle for p(h) (by first symbols) and one for the scores (by context), raises
scores to extensions, and finds a threshold for a size by histograms. The driver never holds counts
or n-grams of order 2 and above, until it assembles the file (SparkLM.save); where even the finished
LM is too much for it, SparkLM.save_parts and `assemble` on another machine.
"""

from lattice_bpd.extras import require

require("pyspark", "spark")
require("pyarrow", "spark")

from lattice_bpd.train.spark.assemble import assemble  # noqa: E402  after the errors above
from lattice_bpd.train.spark.count import SparkCounts, count_corpus  # noqa: E402
from lattice_bpd.train.spark.estimate import train_counts  # noqa: E402
from lattice_bpd.train.spark.lm import SparkLM  # noqa: E402
from lattice_bpd.train.spark.prune import prune_ngram  # noqa: E402
from lattice_bpd.train.spark.read import SparkCorpus, read_corpus  # noqa: E402
from lattice_bpd.train.spark.session import start_session  # noqa: E402

__all__ = [
    "SparkCorpus",
    "SparkCounts",
    "SparkLM",
    "assemble",
    "count_corpus",
    "prune_ngram",
    "read_corpus",
    "start_session",
    "train_counts",
]
