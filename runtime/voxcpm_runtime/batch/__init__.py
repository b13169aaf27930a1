"""Several utterances at once: an optional room, whose door is `in_lock_step`."""
