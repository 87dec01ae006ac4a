//! The validator of a value, for conditional requests.

/// The validator of a value: a mark by which its source tells whether it has changed since.
///
/// Both parts are opaque text, which the source gave and gets back unchanged. A source without HTTP
/// uses `etag` for its own mark, such as a row version.
///
/// ```
/// use steadfast::cache_aside::Validator;
///
/// let validator = Validator::default().etag("\"33a64df5\"");
/// assert_eq!(validator.etag.as_deref(), Some("\"33a64df5\""));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Validator {
    /// Entity tag: the `etag` of a response, which a request repeats as `if-none-match`.
    pub etag: Option<String>,
    /// Time of the last change: the `last-modified` of a response, which a request repeats as
    /// `if-modified-since`.
    pub last_modified: Option<String>,
}

impl Validator {
    /// Sets [`etag`](field@Self::etag).
    #[must_use]
    pub fn etag(mut self, etag: impl Into<String>) -> Self {
        self.etag = Some(etag.into());
        self
    }

    /// Sets [`last_modified`](field@Self::last_modified).
    #[must_use]
    pub fn last_modified(mut self, last_modified: impl Into<String>) -> Self {
        self.last_modified = Some(last_modified.into());
        self
    }
}
