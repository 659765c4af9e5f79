"""Search on the host and the device: indices, encoders, and the knowledge base over them."""
