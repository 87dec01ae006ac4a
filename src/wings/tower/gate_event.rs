//! Events of a gate.
use http::StatusCode;

use crate::observe::Traced;

/// A rule of a gate, in the order in which they are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GateRule {
    /// Path and query are too long: 414.
    UriTooLong,
    /// The path is [ambiguous](crate::http::strict_path), or the target has a host: 400.
    Path,
    /// No route has this path: 404.
    Route,
    /// The routes of this path have other methods: 405.
    Method,
    /// The headers are too many or too large: 431.
    HeadersTooLarge,
    /// No host or two, two of a header that passes and is no list, two lengths, a length beside a
    /// transfer coding, a length that is no number, or a body that is longer than its length: 400.
    Framing,
    /// A body without a declared length, or no body where a type is demanded: 411.
    NoLength,
    /// The body is too large: 413.
    BodyTooLarge,
    /// The body has another type, or a coding: 415.
    ContentType,
    /// There are as many requests with a body as may be at once: 503.
    Busy,
    /// The body did not arrive in time: 408.
    BodyTooSlow,
    /// The body ended before its length: 400.
    BodyBroken,
    /// The inner service, or the body, panicked: 500.
    Panicked,
}

impl GateRule {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 13] = [
        Self::UriTooLong,
        Self::Path,
        Self::Route,
        Self::Method,
        Self::HeadersTooLarge,
        Self::Framing,
        Self::NoLength,
        Self::BodyTooLarge,
        Self::ContentType,
        Self::Busy,
        Self::BodyTooSlow,
        Self::BodyBroken,
        Self::Panicked,
    ];

    /// Returns the rule as a word: `body_too_large`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UriTooLong => "uri_too_long",
            Self::Path => "path",
            Self::Route => "route",
            Self::Method => "method",
            Self::HeadersTooLarge => "headers_too_large",
            Self::Framing => "framing",
            Self::NoLength => "no_length",
            Self::BodyTooLarge => "body_too_large",
            Self::ContentType => "content_type",
            Self::Busy => "busy",
            Self::BodyTooSlow => "body_too_slow",
            Self::BodyBroken => "body_broken",
            Self::Panicked => "panicked",
        }
    }

    /// Returns the status of the response to a request that breaks the rule.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::Path | Self::Framing | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::Route => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::NoLength => StatusCode::LENGTH_REQUIRED,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An event of a [`GateLayer`](super::GateLayer). It never contains a part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateEvent {
    /// A request was refused, or its inner service panicked.
    Refused {
        /// The rule.
        rule: GateRule,
        /// Status of the response.
        status: StatusCode,
    },
}

impl Traced for GateEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::tower", tracing::Level::INFO)
    }

    fn trace(&self, gate: &str) {
        let Self::Refused { rule, status } = self;
        let (rule, status) = (rule.as_str(), status.as_u16());
        tracing::info!(target: "steadfast::tower", gate, rule, status, "request refused");
    }
}
