"""What clients read, folded from what was written."""
