"""Speech: open bundles, the queue, streams, encoders."""
