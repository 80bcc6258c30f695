"""What can be said about a model, its data and its boards before anything is quantized."""
