//! Errors of backends, and how to react to them.
use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::{
    config::ConfigError,
    outcome::{Classify, FailureKind, Hint, Verdict},
};

/// The reaction that an error calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The error is temporary: try again.
    Transient,
    /// The backend is overloaded: try again later, with back-off.
    Throttled,
    /// The same request always fails.
    Permanent,
}

/// The kind of a failure between a port and its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortErrorKind {
    /// An argument violates a rule of the port; the message names it. Nothing was sent.
    Invalid,
    /// The backend does not support the request, as its [`Capabilities`](super::Capabilities)
    /// state.
    Unsupported,
    /// The backend was not reached, or the connection was lost.
    Unavailable,
    /// No response arrived in time.
    TimedOut,
    /// The backend is busy, or asks for fewer requests.
    Throttled,
    /// A limit was reached, such as the length of a queue or the space of a disk.
    Full,
    /// The credentials or the permissions do not suffice.
    Denied,
    /// The stored data cannot be read: a damaged file, or a record in an unknown format.
    Corrupt,
    /// The stored data was written by a newer release.
    TooNew,
    /// The port was closed, or its process is shutting down.
    Closed,
    /// Another error. Repeating the request fails again.
    Other,
}

impl PortErrorKind {
    /// Returns the reaction that this kind calls for.
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

/// The failure of a backend: its kind, the time after which to retry, and a flag for requests that
/// may have been applied.
///
/// A clone is cheap: a failed group commit returns the same error to each writer of the group.
#[derive(Debug, Clone)]
pub struct PortError(Arc<PortErrorDetails>);

#[derive(Debug, Clone)]
struct PortErrorDetails {
    kind: PortErrorKind,
    may_have_been_applied: bool,
    is_temporary: bool,
    message: String,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl PortError {
    /// Creates an error of this kind. The message says what happened, where, and if possible what
    /// to do. The error states that nothing was applied.
    pub fn new(kind: PortErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(PortErrorDetails {
            kind,
            may_have_been_applied: false,
            is_temporary: false,
            message: message.into(),
            retry_after: None,
            source: None,
        }))
    }

    /// Rejects the argument `field` because it violates `rule`. The rule reads as the end of a
    /// sentence: "must not be empty".
    pub fn invalid(field: &str, rule: impl fmt::Display) -> Self {
        Self::new(PortErrorKind::Invalid, format!("invalid `{field}`: {rule}"))
    }

    /// Marks the outcome as unknown: the request was sent, and no response arrived.
    #[must_use]
    pub fn outcome_unknown(mut self) -> Self {
        Arc::make_mut(&mut self.0).may_have_been_applied = true;
        self
    }

    /// Marks that nothing that counts was applied: the request alone had no effect.
    pub(crate) fn nothing_applied(mut self) -> Self {
        if self.may_have_been_applied() {
            Arc::make_mut(&mut self.0).may_have_been_applied = false;
        }
        self
    }

    /// Marks the error as temporary, whatever its kind: a handle that was connected is refused,
    /// such as after a change of its password, and tries to connect again by itself.
    ///
    /// ```
    /// use steadfast::port::{ErrorClass, PortError, PortErrorKind};
    ///
    /// let error = PortError::new(PortErrorKind::Denied, "the server refuses the password");
    /// assert_eq!(error.class(), ErrorClass::Permanent);
    /// assert_eq!(error.temporary().class(), ErrorClass::Transient);
    /// ```
    #[must_use]
    pub fn temporary(mut self) -> Self {
        Arc::make_mut(&mut self.0).is_temporary = true;
        self
    }

    /// Sets the wait that the backend asks for.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        Arc::make_mut(&mut self.0).retry_after = Some(wait);
        self
    }

    /// Sets the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::new(source));
        self
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> PortErrorKind {
        self.0.kind
    }

    /// Returns the reaction that the error calls for: that of its kind, or
    /// [`Transient`](ErrorClass::Transient) instead of [`Permanent`](ErrorClass::Permanent) if it
    /// is [`temporary`](Self::temporary).
    pub fn class(&self) -> ErrorClass {
        match self.0.kind.class() {
            ErrorClass::Permanent if self.0.is_temporary => ErrorClass::Transient,
            class => class,
        }
    }

    /// Returns `true` if the request may have been applied although it failed. Read the state again
    /// before you decide.
    pub fn may_have_been_applied(&self) -> bool {
        self.0.may_have_been_applied
    }

    /// Returns the wait that the backend asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl From<ConfigError> for PortError {
    /// Rejects a setting of a backend, with its name.
    fn from(error: ConfigError) -> Self {
        Self::new(PortErrorKind::Invalid, error.to_string())
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if self.0.may_have_been_applied { f.write_str(" (the request may have been applied)") } else { Ok(()) }
    }
}

impl Error for PortError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

/// Common properties of the errors of all ports.
pub trait Failure: Error {
    /// Returns the failure of the backend, or `None` if the backend works and refused the request
    /// on its merits: a failed precondition, a stale receipt, a lost lease.
    fn backend(&self) -> Option<&PortError>;

    /// Returns the reaction that the error calls for. A refusal on its merits is permanent: read
    /// again before you write again.
    fn class(&self) -> ErrorClass {
        self.backend().map_or(ErrorClass::Permanent, PortError::class)
    }

    /// Returns `true` if the request may have been applied although it failed.
    fn may_have_been_applied(&self) -> bool {
        self.backend().is_some_and(PortError::may_have_been_applied)
    }
}

impl Failure for PortError {
    fn backend(&self) -> Option<&PortError> {
        Some(self)
    }
}

/// Returns the verdict of a pipeline around calls of a port. Pass this function to
/// [`Pipeline::classify`](crate::Pipeline::classify).
///
/// A refusal on its merits counts as a client failure: the backend works, and a retry would not
/// help.
pub fn verdict<T, E: Failure>(result: &Result<T, E>) -> Verdict {
    let Err(error) = result else { return Verdict::success() };
    let Some(backend) = error.backend() else { return Verdict::failure(FailureKind::Client) };
    let kind = match backend.kind() {
        PortErrorKind::TimedOut => FailureKind::Timeout,
        // The write may have been applied, so only idempotent operations may be repeated.
        PortErrorKind::Unavailable if backend.may_have_been_applied() => FailureKind::Timeout,
        PortErrorKind::Unavailable => FailureKind::Connect,
        PortErrorKind::Throttled => FailureKind::Throttled,
        PortErrorKind::Full => FailureKind::Overloaded,
        // A handle that was connected is refused for now: nothing was sent.
        _ if backend.class() == ErrorClass::Transient && !backend.may_have_been_applied() => FailureKind::Connect,
        PortErrorKind::Invalid | PortErrorKind::Unsupported => FailureKind::Client,
        _ => FailureKind::Server,
    };
    Verdict::failure(kind).with_hint(match (backend.class(), backend.retry_after()) {
        (ErrorClass::Permanent, _) => Hint::DoNotRetry,
        (_, Some(wait)) => Hint::RetryAfter(wait),
        (_, None) => Hint::None,
    })
}

/// [`verdict`] as a classifier: one pipeline with it serves calls of all types.
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
