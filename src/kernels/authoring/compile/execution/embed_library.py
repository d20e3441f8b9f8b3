"""Write a C++ header with the bytes of a Metal library, and a function that loads it. Run as a script by the builder.

python embed_library.py LIBRARY HEADER NAMESPACE
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["library_header"]

_HEADER = """// The bytes of {file}, written by the builder.
#pragma once

#include <cstddef>

#ifdef __OBJC__
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#endif

namespace {namespace} {{

alignas(16) static const unsigned char metallib_data[] = {{
{data}
}};
static const std::size_t metallib_data_len = {size};

#ifdef __OBJC__
// The library, or nil with the reason in `error`. The caller owns it.
static inline id<MTLLibrary> createLibrary(id<MTLDevice> device, NSError** error = nullptr) {{
  // The bytes stay where they are for as long as this code does: nothing is copied or freed.
  dispatch_data_t bytes = dispatch_data_create(metallib_data, metallib_data_len, nullptr, ^{{
  }});
  id<MTLLibrary> library = [device newLibraryWithData:bytes error:error];
#if !__has_feature(objc_arc)
  dispatch_release(bytes);
#endif
  return library;
}}
#endif

}}  // namespace {namespace}
"""

_BYTES_PER_LINE = 24


def library_header(data: bytes, file: str, namespace: str) -> str:
    """The header.

    Args:
        data: The library.
        file: Its name.
        namespace: The C++ namespace that holds `metallib_data`, `metallib_data_len` and, for Objective-C++,
            `createLibrary`.

    Example:
        >>> "0x4d, 0x54" in library_header(b"MT", "a.metallib", "embedded")
        True
    """
    lines = (data[start : start + _BYTES_PER_LINE] for start in range(0, len(data), _BYTES_PER_LINE))
    text = ",\n".join("    " + ", ".join(f"0x{byte:02x}" for byte in line) for line in lines)
    return _HEADER.format(file=file, namespace=namespace, data=text, size=len(data))


def _main() -> int:
    library, header, namespace = sys.argv[1:]
    data = Path(library).read_bytes()
    if not data:
        print(f"{library} is empty", file=sys.stderr)
        return 1
    Path(header).write_text(library_header(data, Path(library).name, namespace), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
