"""From rows to `analysis.json`: the schema, the estimates and checks put together, break-even."""
