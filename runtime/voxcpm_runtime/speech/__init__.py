"""From the arguments of a call to its speech: plan, segments, attempts, results."""
