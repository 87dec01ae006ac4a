//! The failure of a backend, and what to do about it.
use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::outcome::{Classify, FailureKind, Hint, Verdict};

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// It passes by itself: try again.
    Transient,
    /// The other side asks for less: try again later, with back-off.
    Throttled,
    /// The same request fails again however often it is sent.
    Permanent,
}

/// What went wrong between a port and its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortErrorKind {
    /// An argument breaks a rule of the port: the message names it. Nothing was sent.
    Invalid,
    /// This backend cannot do that, as its [`Capabilities`](super::Capabilities) say.
    Unsupported,
    /// The backend was not reached, or the connection was lost.
    Unavailable,
    /// No answer in time.
    TimedOut,
    /// The backend is busy, or asks for fewer requests.
    Throttled,
    /// A bound was reached: of a queue's length, of a disk.
    Full,
    /// The credentials or the permissions do not suffice.
    Denied,
    /// What is stored cannot be read: a damaged file, a record of somebody else's.
    Corrupt,
    /// What is stored was written by a newer release.
    TooNew,
    /// The port was closed, or its process is going down.
    Closed,
    /// None of these; the same again would fail again.
    Other,
}

impl PortErrorKind {
    /// What to do about it.
    pub const fn class(self) -> ErrorClass {
        match self {
            Self::Unavailable | Self::TimedOut => ErrorClass::Transient,
            Self::Throttled | Self::Full => ErrorClass::Throttled,
            Self::Invalid
            | Self::Unsupported
            | Self::Denied
            | Self::Corrupt
            | Self::TooNew
            | Self::Closed
            | Self::Other => ErrorClass::Permanent,
        }
    }
}

/// The failure of a backend: what went wrong, whether the request may have been applied all the same, and when to come back.
///
/// Cheap to clone: a failed group commit hands the same one to every writer of the group.
#[derive(Debug, Clone)]
pub struct PortError(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: PortErrorKind,
    may_have_been_applied: bool,
    message: String,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl PortError {
    /// An error of this kind; the message says what happened, where, and if possible what to do. Nothing was applied.
    pub fn new(kind: PortErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            may_have_been_applied: false,
            message: message.into(),
            retry_after: None,
            source: None,
        }))
    }

    /// Refuses the argument `field` because it breaks `rule`, which reads as the end of a sentence: "must not be empty".
    pub fn invalid(field: &str, rule: impl fmt::Display) -> Self {
        Self::new(PortErrorKind::Invalid, format!("invalid `{field}`: {rule}"))
    }

    /// The same, with nobody knowing whether the request was applied: it was sent, and no answer came.
    #[must_use]
    pub fn outcome_unknown(mut self) -> Self {
        Arc::make_mut(&mut self.0).may_have_been_applied = true;
        self
    }

    /// The same, and the backend says to wait this long.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        Arc::make_mut(&mut self.0).retry_after = Some(wait);
        self
    }

    /// The same, with the error behind it.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::new(source));
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> PortErrorKind {
        self.0.kind
    }

    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        self.0.kind.class()
    }

    /// Whether the request may have been applied although it failed. Read again before you decide.
    pub fn may_have_been_applied(&self) -> bool {
        self.0.may_have_been_applied
    }

    /// How long the backend says to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if self.0.may_have_been_applied { f.write_str(" (it may have been applied)") } else { Ok(()) }
    }
}

impl Error for PortError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

/// What the errors of all ports have in common.
pub trait Failure: Error {
    /// The failure of the backend, where it is one; `None` where the backend is well and the request was refused on its merits: a
    /// failed precondition, a stale receipt, a lost lease.
    fn backend(&self) -> Option<&PortError>;

    /// What to do about it. A refusal on its merits is permanent: read again before you write again.
    fn class(&self) -> ErrorClass {
        self.backend().map_or(ErrorClass::Permanent, PortError::class)
    }

    /// Whether the request may have been applied although it failed.
    fn may_have_been_applied(&self) -> bool {
        self.backend().is_some_and(PortError::may_have_been_applied)
    }
}

impl Failure for PortError {
    fn backend(&self) -> Option<&PortError> {
        Some(self)
    }
}

/// The verdict of a pipeline around calls of a port: hand it to [`Pipeline::classify`](crate::Pipeline::classify).
///
/// A refusal on its merits counts as the client's: the backend is well, and trying again would not help.
pub fn verdict<T, E: Failure>(result: &Result<T, E>) -> Verdict {
    let Err(error) = result else { return Verdict::success() };
    let Some(backend) = error.backend() else { return Verdict::failure(FailureKind::Client) };
    let kind = match backend.kind() {
        PortErrorKind::TimedOut => FailureKind::Timeout,
        // Applied or not: whoever may not repeat has to look first.
        PortErrorKind::Unavailable if backend.may_have_been_applied() => FailureKind::Timeout,
        PortErrorKind::Unavailable => FailureKind::Connect,
        PortErrorKind::Throttled => FailureKind::Throttled,
        PortErrorKind::Full => FailureKind::Overloaded,
        PortErrorKind::Invalid | PortErrorKind::Unsupported => FailureKind::Client,
        _ => FailureKind::Server,
    };
    Verdict::failure(kind).with_hint(match (backend.class(), backend.retry_after()) {
        (ErrorClass::Permanent, _) => Hint::DoNotRetry,
        (_, Some(wait)) => Hint::RetryAfter(wait),
        (_, None) => Hint::None,
    })
}

/// [`verdict`] as a judge: one pipeline with it serves calls of every type.
///
/// ```
/// use steadfast::{Pipeline, port::ByFailure, store::{InMemoryStore, Key, Store, StoreExt}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (store, pipeline) = (InMemoryStore::new(), Pipeline::new().classify(ByFailure));
/// let key = Key::new("orders", "42");
/// let version = pipeline.call(|| store.insert(key, "placed")).await.unwrap();
/// let record = pipeline.call(|| store.get(key)).await.unwrap();
/// assert_eq!(record.unwrap().version, version);
/// # });
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByFailure;

impl<T, E: Failure> Classify<T, E> for ByFailure {
    fn classify(&self, result: &Result<T, E>) -> Verdict {
        verdict(result)
    }
}
