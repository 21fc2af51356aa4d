"""Language models: packed forward, log-probabilities, adapters, heads, templates, GGUF."""
