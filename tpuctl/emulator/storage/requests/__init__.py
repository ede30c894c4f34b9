"""What all methods share: calls and answers, batches, partial responses, billed projects."""
