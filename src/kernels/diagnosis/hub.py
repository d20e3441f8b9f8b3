"""The Hub: whether it answers, whether it is one, and whether it accepts the token."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from kernels import settings
from kernels.diagnosis import variable_table
from kernels.diagnosis.finding import Findings
from kernels.errors import HubUnavailable, KernelsError, RequestError
from kernels.models.address import HubAddress
from kernels.models.mirror import MIRROR_FILE, parse_time
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES, is_mirror_document
from kernels.sources.response import read_body
from kernels.sources.wire import request_headers, send
from kernels.support.formatting import format_error, format_text, plural
from kernels.support.secrets import redacted
from kernels.support.tasks import side_by_side

__all__ = ["HUB_SECONDS", "HubReport", "check_address", "check_hubs", "no_answer_in_time"]

#: How long all questions to the Hub may take.
HUB_SECONDS = 8.0

_REQUEST_SECONDS = 4.0
#: Certificates and signed URLs fail when clocks differ by more than some minutes.
_CLOCK_SECONDS = 300
_MAX_BODY = 64 * 1024
#: A repository that no Hub has.
_NO_REPOSITORY = "kernels-doctor/no-such-repository"
#: The variables of a proxy, which are read in upper and lower case.
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


class HubReport(msgspec.Struct, frozen=True):
    """The Hub, and whether it answers (None: no request was sent)."""

    endpoint: str
    answers: bool | None = None
    note: str | None = None


def check_hubs() -> tuple[tuple[HubReport, ...], Findings]:
    """Ask every Hub and mirror that kernels come from."""
    found = Findings("hub")
    try:
        addresses = settings.hub_addresses()
    except RequestError as error:  # reported with the variables
        shown = format_text(variable_table.active_variables().get("KERNELS_HUB", ""))
        return (HubReport(shown, False, format_text(error)),), found
    checked = side_by_side(check_address, addresses, at_once=len(addresses), name="hub")
    for _, each in checked:
        found.problems += each.problems
        found.notes += each.notes
    return tuple(report for report, _ in checked), found


def check_address(address: HubAddress) -> tuple[HubReport, Findings]:
    """Ask a Hub for a list of one kernel, and whose token it got; or a mirror for its index."""
    found = Findings("hub")
    endpoint = address.value
    if address.kind == "folder":
        return HubReport(endpoint, note="a folder: no network requests"), found
    try:
        offline = settings.offline()
    except RequestError as error:  # reported with the variables
        return HubReport(endpoint, False, format_text(error)), found
    if offline:
        if variable_table.active_variables().get("KERNELS_HUB"):
            found.note(
                f"HF_HUB_OFFLINE is set: {endpoint} is not asked, and only kernels in the cache are loaded.",
                "Unset HF_HUB_OFFLINE where kernels come from that address.",
            )
        return HubReport(endpoint, note="offline (HF_HUB_OFFLINE): no request was sent"), found
    if address.kind == "store":
        return _check_store(endpoint, found)
    try:
        headers = request_headers(endpoint, lambda: ("doctor",))
    except RequestError as error:
        found.problem(str(error), f"Set the token again: {settings.token_source(endpoint)}.")
        return HubReport(endpoint, None, "the token cannot be sent"), found
    try:
        note = _ask(endpoint, headers, found)
    except Exception as error:  # noqa: BLE001 - the types depend on the version of huggingface_hub
        message, fix = _no_answer(endpoint, error)
        found.problem(message, fix)
        return HubReport(endpoint, False, format_text(redacted(message), 300)), found
    if isinstance(note, HubReport):
        return note, found
    return HubReport(endpoint, note is None, note), found


def _check_store(endpoint: str, found: Findings) -> tuple[HubReport, Findings]:
    """Ask an object store for a mirror's own index."""
    from kernels.mirror.stores.base import EntryNotFound
    from kernels.mirror.stores.opening import open_store

    try:
        document = open_store(endpoint).read(MIRROR_FILE, MAX_DOCUMENT_BYTES)
    except EntryNotFound:
        found.problem(f"{endpoint} has no {MIRROR_FILE}.", "Check KERNELS_HUB, or write the mirror: kernels mirror.")
        return HubReport(endpoint, False, "answers, but has no mirror"), found
    except KernelsError as error:
        found.problem(format_text(redacted(str(error)), 300), "Check the address and the credentials.")
        return HubReport(endpoint, False, "does not answer"), found
    assert document is not None  # only a conditional request has no document
    return _check_mirror(endpoint, document.content, found), found


def _check_mirror(endpoint: str, content: bytes, found: Findings) -> HubReport:
    """Whether a mirror's own index is valid, signed as required, and how old it is."""
    from kernels.mirror.read_index import read_mirror_index

    try:
        index = read_mirror_index(content, f"{endpoint}/{MIRROR_FILE}")
    except KernelsError as error:
        found.problem(str(error), "Ask who writes the mirror; `kernels mirror --verify` lists what is wrong.")
        return HubReport(endpoint, False, "a mirror that is not valid, or not signed as required")
    days = max(0, int((time.time() - parse_time(index.time)) / (24 * 3600)))
    age = f"{plural(days, 'day')} ago" if days else "today"
    signed = ", signed as KERNELS_MIRROR_KEYS requires" if settings.mirror_keys() else ""
    return HubReport(endpoint, True, f"answers: a mirror of {index.time}, {age}{signed}")


def no_answer_in_time() -> tuple[tuple[HubReport, ...], Findings]:
    """The report about Hubs that were not waited for any longer."""
    found = Findings("hub")
    try:
        endpoint = settings.endpoint()
    except RequestError:
        endpoint = ""
    message = f"{endpoint} did not answer within {HUB_SECONDS:g} seconds."
    found.problem(message, f"Check that it can be reached from here{_proxies()}.")
    return (HubReport(endpoint, False, message),), found


def _ask(endpoint: str, headers: dict[str, str], found: Findings) -> HubReport | str | None:
    """What is wrong with the answer, for the report; None where nothing is; the whole report of a mirror."""
    sent = any(name.lower() == "authorization" for name in headers)
    source = settings.token_source(endpoint)
    with closing(send(f"{endpoint}/api/kernels?limit=1", headers, _REQUEST_SECONDS)) as response:
        status, kind = response.status_code, str(response.headers.get("Content-Type", ""))
        said = _said(response)
        _check_clock(endpoint, response.headers.get("Date"), found)
        location = str(response.headers.get("Location", ""))
    page = status == 200 and "html" in kind.lower()
    # A web server redirects to a folder's name with a slash, or shows a page for it; a private bucket answers 403.
    may_be_mirror = page or 300 <= status < 500
    if may_be_mirror and (content := _mirror_index(endpoint, headers)) is not None:
        return _check_mirror(endpoint, content, found)
    if status == 401 or (status == 403 and sent):
        what = "the token" if sent else "a request without a token"
        found.problem(f"{endpoint} refuses {what} (status {status}){said}.", f"Set a valid token: {source}.")
        return f"refuses {what} (status {status})"
    if status in (403, 407, 451):
        found.problem(
            f"{endpoint}, or a proxy on the way, refuses access from here (status {status}){said}.",
            f"Ask who runs the network{_proxies()}.",
        )
        return f"refuses access (status {status})"
    if status >= 500:
        found.problem(f"{endpoint} answered with status {status}{said}.", "Try again later, or use a mirror.")
        return f"answered with status {status}"
    if 300 <= status < 400:
        to = format_text(redacted(location), 200)
        found.problem(
            f"{endpoint} redirects to {to}.",
            f"Set {_endpoint_variable()} to the Hub's own URL; before a login page, log in to the network.",
        )
        return f"redirects to {to}"
    if page:
        found.problem(
            f"{endpoint} answered with a page, not as a Hub does.",
            f"Check {_endpoint_variable()}; before a login page, log in to the network.",
        )
        return "does not answer as a Hub does"
    if status != 200 and not _knows_repositories(endpoint, headers):
        found.problem(
            f"{endpoint} answers, but not as a Hub (status {status}){said}.",
            f"Check the URL in {_endpoint_variable()}: it may have a path too many, or another server's port.",
        )
        return f"answers, but not as a Hub (status {status})"
    if sent:
        _check_token(endpoint, headers, source, found)
    return None


def _knows_repositories(endpoint: str, headers: dict[str, str]) -> bool:
    """Whether a server that lists no kernels says of a repository what a Hub does.

    Not every Hub has a list (`kernels serve` has none), but each gives a code or a message with the refusal of a
    repository that does not exist: 404 with a token, and 401 without one on huggingface.co.
    """
    url = f"{endpoint}/api/kernels/{_NO_REPOSITORY}/refs"
    with closing(send(url, headers, _REQUEST_SECONDS)) as response:
        status, answer = response.status_code, response.headers
    return status == 200 or "X-Error-Code" in answer or (status == 401 and "X-Error-Message" in answer)


def _mirror_index(endpoint: str, headers: dict[str, str]) -> bytes | None:
    """The content of a mirror's own index; None if there is none."""
    with closing(send(f"{endpoint}/{MIRROR_FILE}", headers, _REQUEST_SECONDS)) as response:
        if response.status_code != 200:
            return None
        content = read_body(response, MAX_DOCUMENT_BYTES, _REQUEST_SECONDS)
    return content if is_mirror_document(content) else None


def _check_token(endpoint: str, headers: dict[str, str], source: str, found: Findings) -> None:
    """A public list is answered with any token: ask for its owner."""
    with closing(send(f"{endpoint}/api/whoami-v2", headers, _REQUEST_SECONDS)) as response:
        if response.status_code in (401, 403):
            said = _said(response)
            found.problem(
                f"{endpoint} does not accept the token (status {response.status_code}){said}.",
                f"Set a valid token: {source}.",
            )


def _said(response: Any) -> str:
    """What the Hub says about an error, such as that a token has expired."""
    if response.status_code < 400:
        return ""
    text = str(response.headers.get("X-Error-Message", ""))
    if not text:
        try:
            body = msgspec.json.decode(read_body(response, _MAX_BODY, _REQUEST_SECONDS))
            text = str(body.get("error", "")) if isinstance(body, dict) else ""
        except Exception:  # noqa: BLE001 - the status says enough
            text = ""
    return f": {format_text(redacted(text), 200).rstrip('.')}" if text else ""


def _check_clock(endpoint: str, date: object, found: Findings) -> None:
    try:
        there = parsedate_to_datetime(str(date)).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return
    off = time.time() - there
    if abs(off) > _CLOCK_SECONDS:
        found.problem(
            f"This machine's clock is {abs(off) / 60:.0f} minutes {'ahead of' if off > 0 else 'behind'} {endpoint}'s.",
            "Set the clock: certificates and signed URLs are not valid at another time.",
        )


def _no_answer(endpoint: str, error: BaseException) -> tuple[str, str]:
    """What kept an answer from coming, and what to do."""
    chain = list(_chain(error))
    said = format_text(redacted(format_error(chain[-1])), 300).rstrip(".")
    certificate = next((each for each in chain if isinstance(each, ssl.SSLCertVerificationError)), None)
    if certificate is not None:
        why = str(getattr(certificate, "verify_message", "") or certificate)
        if "expired" in why or "not yet valid" in why:
            now = time.strftime("%Y-%m-%d %H:%M", time.localtime())
            return f"{endpoint}: {why}.", f"Check this machine's clock, which says {now}."
        return (
            f"{endpoint} has a certificate that is not trusted: {format_text(why, 200)}.",
            "Set SSL_CERT_FILE to the certificates of your network's proxy or Hub.",
        )
    if any(isinstance(each, ssl.SSLError) for each in chain):
        return f"{endpoint}: no TLS connection ({said}).", f"Check that it is an https URL{_proxies()}."
    if isinstance(error, HubUnavailable) or any("proxy" in type(each).__name__.lower() for each in chain):
        return f"No connection can be made through the proxy: {said}.", f"Check SSL_CERT_FILE{_proxies()}."
    if any(isinstance(each, socket.gaierror) for each in chain):
        return (
            f"{endpoint}: no address is known for this name ({said}).",
            f"Check the URL and the network (DNS){_proxies()}; without a network set HF_HUB_OFFLINE=1.",
        )
    if any(isinstance(each, TimeoutError) or "timeout" in type(each).__name__.lower() for each in chain):
        return (
            f"{endpoint} did not answer within {_REQUEST_SECONDS:g} seconds.",
            f"Check that it can be reached from here{_proxies()}.",
        )
    return f"{endpoint} does not answer: {said}.", f"Check that it can be reached from here{_proxies()}."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(16):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__  # also one that a library suppresses


def _proxies() -> str:
    """Where a proxy may be wrong, as the end of a sentence."""
    environment = settings.environment()
    there = [name for name in (*_PROXIES, *map(str.lower, _PROXIES)) if environment.get(name)]
    return f", and the proxy in {', '.join(there)}" if there else "; behind a proxy set HTTPS_PROXY"


def _endpoint_variable() -> str:
    return "KERNELS_HUB" if variable_table.active_variables().get("KERNELS_HUB") else "HF_ENDPOINT"
