"""Wrong KV on purpose, and engines that differ, isolated; and an article's keys, replayed."""
