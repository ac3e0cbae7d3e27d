"""What an audit found, for readers: one HTML page, a Markdown summary, the break-even picture."""
