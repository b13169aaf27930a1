"""From the arguments of a call to its speech: plan, attempts, segments in one voice, results."""
