"""The data plane: arena, KV store, directory, keys and the vLLM connector."""
