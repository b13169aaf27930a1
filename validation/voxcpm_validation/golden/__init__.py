"""Golden records: fixed texts and seeds, the hashes and figures of what a bundle says, and their comparison."""
