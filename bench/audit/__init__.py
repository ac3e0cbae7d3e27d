"""The causal audit: under which conditions relay pays, with an interval for every answer."""
