"""Files that appear when they are complete, folders that belong to the user, and freed memory."""
