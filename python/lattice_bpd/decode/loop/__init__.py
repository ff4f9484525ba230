"""The decoding loop: read the prompts, then draft, verify and keep tokens until every text ends."""
