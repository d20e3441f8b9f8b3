"""Where an answer may send us: every address that a Hub names is checked here before anything is asked of it.

The token of a Hub goes to that Hub alone, so questions stay there; only the content of a file may come from elsewhere.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from kernels.errors import HubUnavailable
from kernels.sources.refusal import HubMoved, HubRefused
from kernels.support.formatting import format_value

__all__ = ["anywhere", "following_page", "within_repository"]

#: The longest URL that a Hub may send us to; a signed one of a CDN has some 2,000 characters.
_MAX_URL = 8192

_REPOSITORY = re.compile(r"/api/(?:kernels|models)/([^/]+/[^/]+)(?:/|$)")


def following_page(endpoint: str, url: str, response: Any) -> str | None:
    """The address of a listing's next page (RFC 8288), on the same Hub; None where this page is the last.

    A mirror may hand out links to the Hub it mirrors: the page is asked of the mirror.

    Args:
        endpoint: The Hub's URL.
        url: The address of this page.
        response: The answer.

    Raises:
        HubUnavailable: It names no address.
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
        raise HubUnavailable(f"The listing at {url} goes on at no address: {format_value(following)}") from None


def within_repository(endpoint: str, url: str, location: str) -> str:
    """Where a redirect leads, if that is the same repository on the same Hub.

    A repository that was renamed or handed over is another one: whose code it holds is asked anew.
    """
    try:
        following = _on(endpoint, urljoin(url, location))
    except ValueError:
        raise HubRefused(url, 310, "", "a redirect to no address") from None
    asked, found = (_REPOSITORY.search(urlsplit(each).path) for each in (url, following))
    if asked is None or found is None:
        raise HubRefused(url, 310, "", "redirected")
    if asked[1] != found[1]:
        raise HubMoved(found[1])
    return following


def anywhere(url: str, location: str) -> str:
    """Where the redirect of a file leads.

    Raises:
        HubRefused: To no address.
    """
    try:
        following = urljoin(url, location)
        parts = urlsplit(following)
        valid = _is_plain(following) and parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not location or not valid:
        raise HubRefused(url, 310, "", "a redirect to no address")
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
