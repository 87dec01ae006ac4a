//! A change of a configuration, before it is published.
use std::{collections::BTreeMap, fmt};

use bytes::Bytes;

use super::Documents;

/// A change of one or several documents.
///
/// ```
/// use steadfast::config_store::Change;
///
/// let change = Change::to("billing", "retries = 3").by("ada").because("promo").expecting(41);
/// ```
#[derive(Clone, PartialEq)]
pub struct Change {
    pub(super) documents: BTreeMap<String, Option<Bytes>>,
    pub(super) author: String,
    pub(super) reason: String,
    /// Lowest and highest number that is expected.
    pub(super) expected: Option<(u64, u64)>,
    pub(super) is_forced: bool,
}

impl Change {
    /// Creates a change that writes a document, which need not exist yet.
    pub fn to(name: impl Into<String>, content: impl Into<Bytes>) -> Self {
        Self {
            documents: BTreeMap::from([(name.into(), Some(content.into()))]),
            author: String::new(),
            reason: String::new(),
            expected: None,
            is_forced: false,
        }
    }

    /// Creates a change that removes a document.
    pub fn remove(name: impl Into<String>) -> Self {
        Self { documents: BTreeMap::from([(name.into(), None)]), ..Self::to("", "") }
    }

    /// Adds another change: all documents change in one revision. What the other one expects or
    /// forces holds for both, and its author and reason stand where this one has none. If the two
    /// expect different numbers, the change is refused.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.documents.extend(other.documents);
        self.expected = match (self.expected, other.expected) {
            (Some((low, high)), Some((lower, higher))) => Some((low.min(lower), high.max(higher))),
            (one, another) => one.or(another),
        };
        self.is_forced |= other.is_forced;
        for (text, others) in [(&mut self.author, other.author), (&mut self.reason, other.reason)] {
            if text.is_empty() {
                *text = others;
            }
        }
        self
    }

    /// Sets the author, for the audit.
    #[must_use]
    pub fn by(mut self, author: impl Into<String>) -> Self {
        self.author = author.into();
        self
    }

    /// Sets the reason, for the audit.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Requires that this number is in effect. Of two publishers that expect the same one, one
    /// wins.
    #[must_use]
    pub const fn expecting(mut self, number: u64) -> Self {
        self.expected = Some((number, number));
        self
    }

    /// Publishes a new revision also if no document changes: processes that have quarantined the
    /// last one try again.
    #[must_use]
    pub const fn force(mut self) -> Self {
        self.is_forced = true;
        self
    }

    /// Returns the documents after the change.
    pub(super) fn apply(&self, documents: &Documents) -> Documents {
        let mut next = documents.to_map();
        for (name, content) in &self.documents {
            match content {
                Some(content) => next.insert(name.clone(), content.clone()),
                None => next.remove(name),
            };
        }
        Documents::new(next)
    }
}

impl fmt::Debug for Change {
    /// Shows names and sizes of documents alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> =
            self.documents.iter().map(|(name, content)| (name, content.as_ref().map(Bytes::len))).collect();
        let mut out = f.debug_struct("Change");
        out.field("documents", &sizes).field("author", &self.author).field("reason", &self.reason);
        out.field("expected", &self.expected).field("is_forced", &self.is_forced).finish()
    }
}
