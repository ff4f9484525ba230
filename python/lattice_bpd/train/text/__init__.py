"""Text of files as token ids: readers, tokenizers, corpora."""
