"""What an object store's answer means, in a sentence: obstore's own texts have the XML, the host and a debug dump."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.mirror.stores.waiting import TookTooLong
from kernels.support.formatting import format_value

__all__ = ["CloudProblem", "cloud_errors", "problem_of", "reason_of"]

#: Answers that a later try may change, as of `sources/http.py`.
_RETRY_STATUSES = frozenset({408, 429, *range(500, 600)} - {501})

#: Names of obstore's exceptions, which are built-in ones in some versions, and the status that they stand for.
_STATUSES = {
    "NotModifiedError": 304,
    "UnauthenticatedError": 401,
    "PermissionDeniedError": 403,
    "PermissionError": 403,
    "NotFoundError": 404,
    "FileNotFoundError": 404,
    "AlreadyExistsError": 412,
    "PreconditionError": 412,
    "NotSupportedError": 501,
    "NotImplementedError": 501,
}

#: What to do about the error codes of S3, Google's XML interface and Azure.
_ADVICE = {
    "ExpiredToken": "The credentials have expired; renew them.",
    "TokenRefreshRequired": "The credentials have expired; renew them.",
    "InvalidAccessKeyId": "The store does not know this access key.",
    "SignatureDoesNotMatch": "The secret key is not the one of this access key, or a proxy changes requests.",
    "InvalidToken": "The session token is not valid.",
    "RequestTimeTooSkewed": "The clock of this machine is wrong.",
    "NoSuchBucket": "There is no such bucket; create it, or correct the address.",
    "ContainerNotFound": "There is no such container; create it, or correct the address.",
    "AuthorizationHeaderMalformed": "The region may be wrong: set AWS_REGION to the region of the bucket.",
    "PermanentRedirect": "The region is wrong: set AWS_REGION to the region of the bucket.",
    "RequestTimeout": "The store waited too long for the request: the network may be slow. Run the command again.",
    "QuotaExceeded": "The quota of the bucket or its owner is used up.",
    "EntityTooLarge": "The store does not take entries of this size.",
}

#: Codes of answers of 400 that a later try may change.
_RETRY_CODES = frozenset({"RequestTimeout"})

#: Codes that say of a header of S3, Google or Azure that the store does not know it.
_UNSUPPORTED = frozenset({"NotImplemented", "UnsupportedHeader", "ConditionHeadersNotSupported"})

#: Requests that are not for the store: obstore asks for the credentials with which it signs.
_ASKS_FOR_CREDENTIALS = re.compile(r"token request|performing [A-Z]+ http://169\.254\.|'az account")

_MISSING_CONTAINERS = frozenset({"NoSuchBucket", "ContainerNotFound"})


@dataclass(frozen=True)
class CloudProblem:
    """Why a request failed.

    Attributes:
        text: What is wrong, without a full stop: `answered 503 (SlowDown)`.
        status: The status of the answer; 0 without an answer.
        code: The store's own word for it, or empty.
        retry: Whether another try may succeed.
        advice: What to do about it, in sentences; may be empty.
        no_ranges: Whether the store sent the whole entry in place of the requested range.
    """

    text: str
    status: int = 0
    code: str = ""
    retry: bool = False
    advice: str = ""
    no_ranges: bool = False

    @property
    def missing(self) -> bool:
        """Whether the bucket has no such entry."""
        return self.status == 404 and self.code not in _MISSING_CONTAINERS

    @property
    def conflict(self) -> bool:
        """Whether the condition of a write did not hold."""
        return self.status in (409, 412) and self.code not in ("BucketAlreadyExists", "OperationAborted")

    @property
    def refused(self) -> bool:
        """Whether the credentials do not allow the request."""
        return self.status in (401, 403)

    @property
    def unsupported(self) -> bool:
        """Whether the store says that it does not know a header of the request."""
        return self.status == 501 or (self.status == 400 and self.code in _UNSUPPORTED)


def cloud_errors() -> tuple[type[Exception], ...]:
    """The exceptions that obstore raises: its own, and the built-in ones that some of them are; and `TookTooLong`."""
    from obstore.exceptions import BaseError

    return TookTooLong, BaseError, OSError, NotImplementedError, ValueError


def problem_of(error: BaseException) -> CloudProblem:
    """Why a request of obstore failed.

    Args:
        error: obstore's exception.

    Example:
        >>> problem_of(Exception("status code: 503 : <Error><Code>SlowDown</Code></Error>")).text
        'answered 503 (SlowDown)'
    """
    if isinstance(error, TookTooLong):
        return CloudProblem("did not answer in time", retry=True)
    text = str(error)
    if "non-partial response" in text:
        return CloudProblem("sends no ranges", no_ranges=True)
    found = re.search(r"status code: (\d{3})|\bstatus: (\d{3}),", text)
    status = int(found[1] or found[2]) if found else _STATUSES.get(type(error).__name__, 0)
    system = re.search(r'message: "([^"\\]{1,100})"', text) or re.search(r'error: "([^"\\]{1,100})"', text)
    reason = f" ({system[1]})" if system else ""
    sending = "HttpError" in text or "reqwest::Error" in text
    if _asked_for_credentials(type(error).__name__, text, status):
        answer = f"answered {status}" if status else f"failed{reason}"
        return CloudProblem(
            "was not asked",
            retry=status in _RETRY_STATUSES if status else sending,
            advice=f"The service or program that gives this machine its credentials {answer}.",
        )
    if status:
        named = re.search(r"<Code>([A-Za-z0-9]{1,60})</Code>", text)
        code = named[1] if named else ""
        advice = _ADVICE.get(code, "")
        if status in (301, 307, 308) or "redirect without LOCATION" in text:
            advice = _ADVICE["PermanentRedirect"]
        retry = status in _RETRY_STATUSES or code in _RETRY_CODES
        return CloudProblem(f"answered {status}{f' ({code})' if code else ''}", status, code, retry, advice)
    if "redirect without LOCATION" in text:
        return CloudProblem("redirects", advice=_ADVICE["PermanentRedirect"])
    if "BadScheme" in text:
        return CloudProblem("has an endpoint that is not https", advice="Write http:// in the endpoint to use it so.")
    if "InvalidCertificate" in text or "certificate" in text.lower():
        return CloudProblem(
            "has a certificate that is not trusted",
            advice="Name the file of its authority in AWS_CA_BUNDLE or SSL_CERT_FILE.",
        )
    if "kind: Timeout" in text or "TimedOut" in text:
        return CloudProblem("did not answer in time", retry=True)
    if "NoContentRange" in text or "Content-Range" in text:
        return CloudProblem("answered without the requested range", retry=True)
    if sending or system:
        return CloudProblem(f"did not answer{reason}", retry=True, advice="Check the network and the endpoint.")
    return CloudProblem(f"cannot be used: {reason_of(error)}")


def reason_of(error: BaseException) -> str:
    """The sentence in an error of obstore, without what is for its developers."""
    first = str(error).partition("\n")[0].partition("Debug source")[0].strip()
    return format_value(re.sub(r"^Generic \w+ error: ", "", first), 200)


def _asked_for_credentials(kind: str, text: str, status: int) -> bool:
    first = text.partition("\n")[0]
    if _ASKS_FOR_CREDENTIALS.search(first):
        return True
    # For an entry, these statuses have exceptions of their own.
    other = kind == "GenericError" and "list request" not in first and "delete request" not in first
    return other and status in (401, 403, 404)
