"""The URLs that a Hub's answer names, checked before a request is sent to them.

The token of a Hub is sent to that Hub only, so API requests stay there; only the content of a file may come from
another host.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from kernels.errors import HubUnavailable
from kernels.sources.hub_errors import HubMoved, HubRefused
from kernels.support.formatting import format_value

__all__ = ["file_redirect", "following_page", "within_repository"]

#: The longest URL that is followed; a signed one of a CDN has some 2,000 characters.
_MAX_URL = 8192

_REPOSITORY = r"/api/(?:kernels|models)/([^/]+/[^/]+)(?:/|$)"


def following_page(endpoint: str, url: str, response: Any) -> str | None:
    """The URL of a listing's next page (RFC 8288), on the same Hub; None if this page is the last.

    A mirror may link to the Hub it mirrors: the page is requested from the mirror.

    Args:
        endpoint: The Hub's URL.
        url: The URL of this page.
        response: The answer.

    Raises:
        HubUnavailable: The link is not a URL.
    """
    try:
        following = response.links.get("next", {}).get("url")
    except (ValueError, LookupError):
        return None
    if not following:
        return None
    try:
        return _on(endpoint, urljoin(url, following))
    except ValueError:
        raise HubUnavailable(f"The next page of the listing at {url} is not a URL: {format_value(following)}") from None


def within_repository(endpoint: str, url: str, location: str) -> str:
    """The URL that a redirect leads to, within the same repository on the same Hub.

    A repository that was renamed or transferred is another one: its publisher is checked again.
    """
    try:
        named = urljoin(url, location)
        following = _on(endpoint, named)
    except ValueError:
        raise HubRefused(url, 0, "", "to an invalid URL") from None
    if following == url and named != url:
        other = format_value("://".join(urlsplit(named)[:2]), 200)
        raise HubRefused(
            url, 0, "", f"to another host, {other}; only the content of files is taken from there, without the token"
        )
    asked, found = (re.search(_REPOSITORY, urlsplit(each).path) for each in (url, following))
    if asked is None or found is None:
        raise HubRefused(url, 0, "", f"to {format_value(following.partition('?')[0], 200)}, which is something else")
    if asked[1] != found[1]:
        raise HubMoved(found[1])
    return following


def file_redirect(url: str, location: str) -> str:
    """The URL that the redirect of a file leads to, on any host.

    Raises:
        HubRefused: It is not a URL.
    """
    try:
        following = urljoin(url, location)
        parts = urlsplit(following)
        valid = _is_plain(following) and parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not location or not valid:
        raise HubRefused(url, 0, "", "to an invalid URL")
    return following


def _on(endpoint: str, url: str) -> str:
    if not _is_plain(url):
        raise ValueError("no URL")
    ours, theirs = urlsplit(endpoint), urlsplit(url)
    if theirs.scheme not in ("http", "https") or not theirs.hostname or not theirs.path.startswith("/"):
        raise ValueError("no URL of a Hub")
    found = url if ours[:2] == theirs[:2] else endpoint + urlunsplit(("", "", *theirs[2:4], ""))
    if urlsplit(found)[:2] != ours[:2]:  # the token goes there
        raise ValueError("another host")
    return found


def _is_plain(url: str) -> bool:
    return len(url) <= _MAX_URL and url.isascii() and url.isprintable() and " " not in url
