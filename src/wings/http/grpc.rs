//! Status codes and push-back of gRPC.
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::{hints::LONGEST_HINT, number::natural};
use crate::outcome::{FailureKind, Hint, Verdict};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const PUSH_BACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// A gRPC status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are gRPC's own")]
#[non_exhaustive]
pub enum GrpcCode {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl GrpcCode {
    const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Returns the code of a number; `Unknown` for an undefined number, as gRPC prescribes.
    pub fn of(number: i64) -> Self {
        usize::try_from(number).ok().and_then(|n| Self::ALL.get(n)).copied().unwrap_or(Self::Unknown)
    }

    /// Returns the number of the code.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the kind of failure that the code stands for; `None` for `Ok`.
    ///
    /// | code | kind |
    /// |---|---|
    /// | `DeadlineExceeded` | `timeout` |
    /// | `ResourceExhausted` | `throttled` |
    /// | `Unavailable` | `overloaded` |
    /// | `Internal`, `DataLoss` | `server` |
    /// | `Cancelled` | `cancelled` |
    /// | `Unknown` | `other` |
    /// | all others | `client`: a retry would not help. After `Aborted`, start again with the first read |
    pub const fn kind(self) -> Option<FailureKind> {
        Some(match self {
            Self::Ok => return None,
            Self::Cancelled => FailureKind::Cancelled,
            Self::Unknown => FailureKind::Other,
            Self::DeadlineExceeded => FailureKind::Timeout,
            Self::ResourceExhausted => FailureKind::Throttled,
            Self::Unavailable => FailureKind::Overloaded,
            Self::Internal | Self::DataLoss => FailureKind::Server,
            Self::InvalidArgument
            | Self::NotFound
            | Self::AlreadyExists
            | Self::PermissionDenied
            | Self::FailedPrecondition
            | Self::Aborted
            | Self::OutOfRange
            | Self::Unimplemented
            | Self::Unauthenticated => FailureKind::Client,
        })
    }
}

/// Returns the verdict on a gRPC call by its trailers, or by its headers if it has no body. Without
/// a readable `grpc-status` the code is `Unknown`.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use steadfast::{FailureKind, Hint, http::grpc_verdict};
///
/// let mut trailers = HeaderMap::new();
/// trailers.insert("grpc-status", HeaderValue::from_static("14"));
/// trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("-1"));
/// let verdict = grpc_verdict(&trailers);
/// assert_eq!((verdict.kind(), verdict.hint()), (Some(FailureKind::Overloaded), Hint::DoNotRetry));
/// ```
pub fn grpc_verdict(trailers: &HeaderMap) -> Verdict {
    verdict_of(code(trailers).unwrap_or(GrpcCode::Unknown), trailers)
}

/// Returns the verdict on a code, with the push-back of the headers.
pub(super) fn verdict_of(code: GrpcCode, headers: &HeaderMap) -> Verdict {
    match code.kind() {
        None => Verdict::success(),
        Some(kind) => Verdict::failure(kind).with_hint(push_back(headers).unwrap_or_default()),
    }
}

/// Returns the code of the headers, if they have one.
pub(super) fn code(headers: &HeaderMap) -> Option<GrpcCode> {
    let value = headers.get(STATUS)?;
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    Some(GrpcCode::of(number.unwrap_or(-1)))
}

/// Returns the push-back: a wait, or "do not retry" for a negative or unreadable value. Of several
/// the strictest.
pub(super) fn push_back(headers: &HeaderMap) -> Option<Hint> {
    let mut longest = None;
    for value in headers.get_all(PUSH_BACK) {
        // A value that is not text counts as unreadable, too.
        match value.to_str().ok().and_then(|text| natural(text.trim())) {
            Some(millis) => longest = longest.max(Some(Duration::from_millis(millis).min(LONGEST_HINT))),
            None => return Some(Hint::DoNotRetry),
        }
    }
    longest.map(Hint::RetryAfter)
}
