"""`draw`: who owns which block, and what goes where."""
