"""An automated listening test: a speech recogniser and a speaker encoder judge unseen texts."""
