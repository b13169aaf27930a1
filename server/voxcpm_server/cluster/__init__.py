"""Several machines, by Ray: an optional room."""
