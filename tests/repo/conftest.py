"""These tests are about the clone: an installed package has nothing of what they read."""

from pipelab.files.bundled_folders import in_clone

collect_ignore_glob = [] if in_clone() else ["test_*.py"]
