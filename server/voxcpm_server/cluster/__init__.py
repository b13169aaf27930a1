"""Several machines with Ray: an optional room."""
