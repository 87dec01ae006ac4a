//! What a status code says of the other side.
use http::StatusCode;

use crate::outcome::FailureKind;

/// The kind of failure that a status stands for; none below 400. The table is on [the page](super).
pub const fn kind_of(status: StatusCode) -> Option<FailureKind> {
    Some(match status.as_u16() {
        0..400 => return None,
        408 | 504 => FailureKind::Timeout,
        429 => FailureKind::Throttled,
        503 | 529 => FailureKind::Overloaded,
        501 | 505 | 400..500 => FailureKind::Client,
        500..600 => FailureKind::Server,
        _ => FailureKind::Other,
    })
}
