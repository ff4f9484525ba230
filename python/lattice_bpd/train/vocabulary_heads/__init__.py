"""Training of VocabularyHeads on a target's own responses."""
