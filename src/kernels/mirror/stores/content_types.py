"""The Content-Type of what lies in a mirror."""

from __future__ import annotations

__all__ = ["content_type"]

_BY_SUFFIX = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "md": "text/markdown; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "toml": "application/toml",
    "txt": "text/plain; charset=utf-8",
    "zst": "application/zstd",
}


def content_type(path: str) -> str:
    """The Content-Type of an entry; what lies below `api/` is JSON and has no suffix.

    Args:
        path: Its path in the mirror.

    Example:
        >>> content_type("api/kernels/org/relu/refs"), content_type("index.html")
        ('application/json', 'text/html; charset=utf-8')
    """
    if path.startswith("api/"):
        return "application/json"
    return _BY_SUFFIX.get(path.rpartition(".")[2].lower(), "application/octet-stream")
