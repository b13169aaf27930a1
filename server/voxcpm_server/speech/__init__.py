"""Open bundles, the queue, one stream, encoders."""
