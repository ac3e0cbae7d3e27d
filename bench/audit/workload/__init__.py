"""What an audit asks: texts, pairs of known likeness, sessions, tasks, and quality."""
