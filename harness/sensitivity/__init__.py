"""Which parts of a model suffer from quantization, and mixed precision from that."""
