//! Conversions from and to tonic's status.
use std::error::Error as _;

use tonic::{Code, Status};

use super::{GrpcCode, grpc, kind_by_source};
use crate::outcome::{CallError, Classify, FailureKind, PolicyError, PolicyKind, Verdict};

/// A classifier for the calls of a tonic client: the table of [`GrpcCode::kind`], with the
/// push-back from the metadata of the status. A call that ended with tonic's own `ConnectError` is
/// of kind `connect`: nothing was sent.
///
/// ```
/// use steadfast::{Classify, FailureKind, http::ByGrpc};
///
/// let busy = Err::<(), _>(tonic::Status::unavailable("busy"));
/// assert_eq!(ByGrpc.classify(&busy).kind(), Some(FailureKind::Overloaded));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByGrpc;

impl<T> Classify<T, Status> for ByGrpc {
    fn classify(&self, result: &Result<T, Status>) -> Verdict {
        let Err(status) = result else { return Verdict::success() };
        // tonic's client maps its own connect error to "unavailable".
        match status.source().map(kind_by_source) {
            Some(FailureKind::Connect) => Verdict::failure(FailureKind::Connect),
            _ => {
                let code = GrpcCode::of(i64::from(status.code() as i32));
                grpc::verdict_of(code, status.metadata().as_ref())
            }
        }
    }
}

/// Returns the status for a request whose call failed.
///
/// It is `RESOURCE_EXHAUSTED` if a rate limit rejected the call and `UNAVAILABLE` if another policy
/// did, both with push-back if the time to return is known. A time-out is `DEADLINE_EXCEEDED`. An
/// error of the operation is returned as it is.
pub fn grpc_status(error: CallError<Status>) -> Status {
    let error = match error.into_operation() {
        Ok(status) => return status,
        Err(error) => error,
    };
    let mut status = match &error {
        PolicyError::TimedOut(timed_out) => return Status::deadline_exceeded(timed_out.to_string()),
        PolicyError::Rejected(rejected) => {
            let code = match rejected.by() {
                PolicyKind::RateLimit => Code::ResourceExhausted,
                _ => Code::Unavailable,
            };
            Status::new(code, rejected.to_string())
        }
    };
    if let Some(wait) = error.retry_after() {
        // Rounded up, so that no caller returns too early.
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        status.metadata_mut().insert("grpc-retry-pushback-ms", millis.into());
    }
    status
}

/// Returns `true` if this is tonic's own connect error.
pub(super) fn is_connect(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<tonic::ConnectError>()
}
