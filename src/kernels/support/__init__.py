"""What is needed everywhere and knows nothing about kernels."""
