"""`kvrelay predict`: where a user's own engine, model and link lie on the break-even map."""
