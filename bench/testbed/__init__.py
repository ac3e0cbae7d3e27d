"""Two Ray nodes on one Linux machine, joined by a wire of a chosen speed."""
