"""The causal audit: under which conditions relay pays, proven by randomised experiments."""
