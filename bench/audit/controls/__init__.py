"""Wrong KV on purpose, in an isolated engine; and the keys that an article proposes, replayed."""
