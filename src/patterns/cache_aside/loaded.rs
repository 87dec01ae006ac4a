//! The result of a loader: a value with its own settings.
use std::time::Duration;

use super::validator::Validator;

/// A value with the settings that its loader, or the caller of a put, decides for it alone.
///
/// A bare value is enough if there is nothing to decide: every function that takes a `Loaded<V>`
/// also takes a `V`. What is set here wins over the [options](super::LoadOptions) of the call and
/// over the settings of the cache.
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
    /// Settings that few values have, so that the others stay small.
    rare: Option<Box<ValueSettings>>,
}

/// Settings that few values have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ValueSettings {
    pub(super) validator: Option<Validator>,
    pub(super) jitter: Option<Duration>,
    pub(super) stale_max_age: Option<Duration>,
    pub(super) skip_local_write: bool,
    pub(super) skip_remote_write: bool,
}

impl ValueSettings {
    pub(super) const NONE: &'static Self =
        &Self { validator: None, jitter: None, stale_max_age: None, skip_local_write: false, skip_remote_write: false };
}

impl<V> Loaded<V> {
    /// Creates a value with the cache's own settings.
    pub const fn new(value: V) -> Self {
        Self { value, ttl: None, tags: Vec::new(), rare: None }
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

    /// Sets the validator of the value. A later
    /// [`get_or_refresh`](super::CacheAside::get_or_refresh) gives it to the loader, together with
    /// the expired value.
    #[must_use]
    pub fn validator(mut self, validator: Validator) -> Self {
        self.rare().validator = Some(validator);
        self
    }

    /// Sets the maximum random time that is added to the time to live, in place of the cache's
    /// [`jitter`](super::CacheAsideConfig::jitter). It holds in the process that loaded the value.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.rare().jitter = Some(jitter);
        self
    }

    /// Sets the age up to which the value is served while the source fails, in place of the cache's
    /// [`stale.max_age`](super::StaleConfig::max_age). It has no effect without `stale`.
    #[must_use]
    pub fn stale_max_age(mut self, max_age: Duration) -> Self {
        self.rare().stale_max_age = Some(max_age);
        self
    }

    /// Keeps the value out of the local tier; an older one there is removed.
    #[must_use]
    pub fn skip_local_write(mut self) -> Self {
        self.rare().skip_local_write = true;
        self
    }

    /// Keeps the value out of the remote tier; an older one that it replaces there is removed.
    #[must_use]
    pub fn skip_remote_write(mut self) -> Self {
        self.rare().skip_remote_write = true;
        self
    }

    pub(super) fn rare(&mut self) -> &mut ValueSettings {
        self.rare.get_or_insert_default()
    }

    pub(super) fn into_parts(self) -> (V, Option<Duration>, Vec<String>, Option<Box<ValueSettings>>) {
        (self.value, self.ttl, self.tags, self.rare)
    }
}

impl<V> From<V> for Loaded<V> {
    fn from(value: V) -> Self {
        Self::new(value)
    }
}
