//! What a loader gives: a value, and what it knows about it.
use std::time::Duration;

/// A value with what its loader, or whoever puts it, decides for it alone.
///
/// A bare value is enough where there is nothing to decide: whatever asks for a `Loaded<V>` takes a `V`, too.
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
    /// For how long it is fresh; the cache's own time to live by default. Zero is not stored at all.
    pub ttl: Option<Duration>,
    /// What it is invalidated by, besides its key.
    pub tags: Vec<String>,
}

impl<V> Loaded<V> {
    /// The value, by the cache's own settings.
    pub const fn new(value: V) -> Self {
        Self { value, ttl: None, tags: Vec::new() }
    }

    /// Sets for how long it is fresh. Zero: it is handed to who waits for it, and not stored.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Adds a tag, by which [`invalidate_tag`](super::CacheAside::invalidate_tag) finds it.
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
