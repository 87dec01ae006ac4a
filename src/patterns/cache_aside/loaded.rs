//! The result of a loader: a value with its own settings.
use std::time::Duration;

/// A value with the settings that its loader, or the caller of a put, decides for it alone.
///
/// A bare value is enough if there is nothing to decide: every function that takes a `Loaded<V>`
/// also takes a `V`.
///
/// ```
/// use std::time::Duration;
/// use steadfast::cache_aside::Loaded;
///
/// let price = Loaded::new(117).ttl(Duration::from_secs(5)).tag("currency:eur");
/// assert_eq!(price.value, 117);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded<V> {
    /// The value.
    pub value: V,
    /// Time for which the value is fresh; the cache's own by default. A value with zero is not
    /// stored.
    pub ttl: Option<Duration>,
    /// Tags by which the value is invalidated, besides its key.
    pub tags: Vec<String>,
}

impl<V> Loaded<V> {
    /// Creates a value with the cache's own settings.
    pub const fn new(value: V) -> Self {
        Self { value, ttl: None, tags: Vec::new() }
    }

    /// Sets the time for which the value is fresh. With zero, waiting callers get it, and it is not
    /// stored.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Adds a tag, by which [`invalidate_tag`](super::CacheAside::invalidate_tag) finds the value.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Adds tags.
    #[must_use]
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.tags.extend(tags.into_iter().map(Into::into));
        self
    }
}

impl<V> From<V> for Loaded<V> {
    fn from(value: V) -> Self {
        Self::new(value)
    }
}
