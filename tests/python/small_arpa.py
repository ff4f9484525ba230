"""A trigram model whose numbers are easy to add up."""

# Tokens 0 the, 1 cat, 2 sat, 3 ran.
SMALL_ARPA = r"""
\data\
ngram 1=6
ngram 2=4
ngram 3=2

\1-grams:
-99	<s>	-0.1
-1.0	</s>
-0.9	0	-0.4
-0.7	1	-0.3
-0.8	2	-0.2
-1.2	3

\2-grams:
-0.2	<s> 0	-0.05
-0.3	0 1	-0.15
-0.5	1 2
-0.6	2 0	-0.25

\3-grams:
-0.1	<s> 0 1
-0.45	0 1 2

\end\
"""
