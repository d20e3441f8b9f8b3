"""The repositories that a Hub lists."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from kernels.errors import HubUnavailable, RepositoryNotFound
from kernels.models.requirement import is_repo_id
from kernels.sources.http import Http, Patience
from kernels.sources.hub_errors import HubRefused, Moved, no_answer
from kernels.sources.hub_responses import REPOSITORIES_PAGE

__all__ = ["listed_repositories"]

#: Entries of a page, as the public Hub limits them.
_PAGE = 1000

#: The most repositories of a Hub: a Hub that lists more does not end.
_MAX_REPOSITORIES = 1_000_000


def listed_repositories(client: Http, publisher: str | None) -> Iterator[str]:
    """The kernel repositories of a publisher, or all, each once, as the Hub lists them.

    Args:
        client: Asks the Hub.
        publisher: The publisher.

    Raises:
        RepositoryNotFound: The Hub lists none of that publisher.
        HubUnavailable: It does not answer, or has no such listing.
    """
    query = {"limit": str(_PAGE), **({} if publisher is None else {"author": publisher})}
    found: set[str] = set()
    try:
        for page in client.listing(f"/api/kernels?{urlencode(query)}", Patience(), REPOSITORIES_PAGE):
            for entry in page:
                # A Hub that does not know the parameter lists all repositories.
                if is_repo_id(entry.id) and publisher in (None, entry.id.partition("/")[0]) and entry.id not in found:
                    found.add(entry.id)
                    yield entry.id
            if len(found) > _MAX_REPOSITORIES:
                raise HubUnavailable(f"{client.endpoint} lists more than {_MAX_REPOSITORIES} repositories.")
    except (HubRefused, Moved) as error:
        if isinstance(error, HubRefused) and error.status != 404:
            raise no_answer(client.endpoint, publisher or "its repositories", error) from error
        raise HubUnavailable(f"{client.endpoint} does not list its kernel repositories; name them.") from error
    if publisher is not None and not found:
        raise RepositoryNotFound(f"The Hub at {client.endpoint} lists no kernel repository of {publisher!r}.")
