"""A kernel's own tests run against its builds (`kernels test`)."""
