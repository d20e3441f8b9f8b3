"""What a source is compiled against: Torch, here or in another environment, tvm-ffi, and other libraries' headers."""
