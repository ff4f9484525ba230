"""The decoding loop: reads prompts, then drafts and verifies until every text ends."""
