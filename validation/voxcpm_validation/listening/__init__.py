"""A listening test by machine: a recogniser and a speaker encoder judge unseen sentences."""
