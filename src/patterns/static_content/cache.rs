//! The headers of the files of a site.

/// `Cache-Control` of an object: its name has its digest.
pub(super) const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// The rule by which caches keep a response. [`Snapshot::cache_control`] has it for a path.
///
/// [`Snapshot::cache_control`]: super::Snapshot::cache_control
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheControl {
    /// An object of a release that is kept: for a year.
    Immutable {
        /// `true` if there are compressed forms of it.
        varies: bool,
    },
    /// A page: it is asked for again each time.
    EntryPoint {
        /// Value of `ETag`: the digest, in quotation marks.
        etag: String,
        /// `true` if there are compressed forms of it.
        varies: bool,
    },
    /// No file of a release that is kept. Answer with 404, and never with a page: a script that is
    /// a page is an error that nobody understands.
    Unknown,
}

impl CacheControl {
    /// Returns the value of the header `Cache-Control`.
    pub fn header(&self) -> &'static str {
        match self {
            Self::Immutable { .. } => IMMUTABLE,
            Self::EntryPoint { .. } => "no-cache",
            Self::Unknown => "no-store",
        }
    }

    /// Returns the value of the header `ETag`, for an entry point.
    pub fn etag(&self) -> Option<&str> {
        match self {
            Self::EntryPoint { etag, .. } => Some(etag),
            Self::Immutable { .. } | Self::Unknown => None,
        }
    }

    /// Returns the value of the header `Vary`, if there are compressed forms.
    pub fn vary(&self) -> Option<&'static str> {
        match self {
            Self::Immutable { varies: true } | Self::EntryPoint { varies: true, .. } => Some("Accept-Encoding"),
            Self::Immutable { .. } | Self::EntryPoint { .. } | Self::Unknown => None,
        }
    }

    /// Returns the status of the response: 200, or 404.
    pub fn status(&self) -> u16 {
        match self {
            Self::Immutable { .. } | Self::EntryPoint { .. } => 200,
            Self::Unknown => 404,
        }
    }
}
