"""The causal audit: under which conditions relay pays."""
