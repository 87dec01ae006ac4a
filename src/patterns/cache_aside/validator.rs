//! Conditional refresh: an expired value and its validator, for a loader that asks the source
//! whether the value has changed.
use super::Loaded;
pub use crate::validator::Validator;

/// A value of this process that has expired, or is due for a refresh, with its validator.
///
/// The loader of a [`get_or_refresh`](super::CacheAside::get_or_refresh) receives it. No
/// invalidated value is among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale<V> {
    value: V,
    validator: Validator,
    tags: Vec<String>,
}

impl<V> Stale<V> {
    pub(super) const fn new(value: V, validator: Validator, tags: Vec<String>) -> Self {
        Self { value, validator, tags }
    }

    /// Returns the value.
    pub const fn value(&self) -> &V {
        &self.value
    }

    /// Returns the validator that the value was stored with.
    pub const fn validator(&self) -> &Validator {
        &self.validator
    }

    /// Returns the answer of a loader whose source says that the value has not changed: the value
    /// with its validator and its tags, whose time to live starts anew.
    pub fn not_modified(self) -> Loaded<V> {
        Loaded::new(self.value).validator(self.validator).tags(self.tags)
    }
}
