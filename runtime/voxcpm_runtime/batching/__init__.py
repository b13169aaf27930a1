"""Several utterances at the same time with step models that were converted for a batch (`convert --batch`)."""
