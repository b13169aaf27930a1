"""Files that appear only when they are complete, and freed memory returned to the operating system."""
