//! Scans of a partition, page by page.
use std::ops::Bound;

use bytes::Bytes;

use super::{Sequence, Version};
use crate::port::{Capabilities, PortError};

/// A query over the rows of a partition: the rows, their order, and the size of a page.
///
/// ```
/// use steadfast::store::Scan;
///
/// let scan = Scan::partition("orders").prefix("2026-11-").descending().limit(50);
/// assert!(scan.rows.contains("2026-11-20"));
/// assert!(!scan.rows.contains("2026-12-01"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scan {
    /// The partition to scan.
    pub partition: String,
    /// The rows to return. All by default.
    pub rows: Rows,
    /// The order of the rows. Ascending by default.
    pub order: Order,
    /// Maximum number of rows in a page, at least 1. 100 by default; the backend may return fewer.
    pub limit: usize,
    /// End of the previous page, behind which this one begins. `None`, the default, is the
    /// beginning.
    pub after: Option<Continuation>,
}

/// A set of rows, by the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Rows {
    /// All rows.
    #[default]
    All,
    /// Rows with this prefix.
    Prefix(String),
    /// Rows between these bounds.
    Range(Bound<String>, Bound<String>),
    /// These rows, as far as they exist; a row that is named twice is returned once. A page ends at
    /// the scan's limit alone, so that one page of a sufficient limit is one snapshot of all of
    /// them. At most [`max_batch`](crate::port::Capabilities::max_batch) names.
    Named(Vec<String>),
}

/// Order of the rows of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
// Exhaustive: an order has two directions.
pub enum Order {
    /// Smallest first.
    #[default]
    Ascending,
    /// Largest first.
    Descending,
}

/// The end of a page, as an opaque token. Pass it back to the same scan; as text it can be sent
/// elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation(String);

/// A row of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The row key within the partition.
    pub row: String,
    /// The stored value.
    pub value: Bytes,
    /// The version of the record.
    pub version: Version,
}

impl Row {
    /// Creates a row, for backends.
    pub const fn new(row: String, value: Bytes, version: Version) -> Self {
        Self { row, value, version }
    }
}

/// One page of a scan, as a snapshot of its partition at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Page {
    /// The rows, in the scan's order.
    pub rows: Vec<Row>,
    /// The token of the next page; `None` after the last one.
    pub next: Option<Continuation>,
}

impl Page {
    /// Creates a page, for backends.
    pub const fn new(rows: Vec<Row>, next: Option<Continuation>) -> Self {
        Self { rows, next }
    }
}

impl Scan {
    /// Creates a scan of all rows of this partition, ascending, 100 in a page.
    pub fn partition(partition: impl Into<String>) -> Self {
        Self { partition: partition.into(), rows: Rows::All, order: Order::Ascending, limit: 100, after: None }
    }

    /// Limits the scan to rows with this prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.rows = Rows::Prefix(prefix.into());
        self
    }

    /// Limits the scan to rows between these bounds.
    #[must_use]
    pub fn range(mut self, from: Bound<String>, to: Bound<String>) -> Self {
        self.rows = Rows::Range(from, to);
        self
    }

    /// Limits the scan to these rows, and raises the limit of a page to their number: the page is
    /// one snapshot of all of them.
    ///
    /// ```
    /// use steadfast::store::Scan;
    ///
    /// let scan = Scan::partition("orders").named(["head", "42"]);
    /// assert!(scan.rows.contains("42") && !scan.rows.contains("43"));
    /// ```
    #[must_use]
    pub fn named(mut self, rows: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let names: Vec<String> = rows.into_iter().map(Into::into).collect();
        self.limit = self.limit.max(names.len());
        self.rows = Rows::Named(names);
        self
    }

    /// Limits the scan to the rows of a sequence whose numbers are above `after`.
    #[must_use]
    pub fn sequence(mut self, sequence: Sequence<'_>, after: u64) -> Self {
        self.rows = sequence.rows_after(after);
        self
    }

    /// Returns the largest row first.
    #[must_use]
    pub fn descending(mut self) -> Self {
        self.order = Order::Descending;
        self
    }

    /// Sets the maximum number of rows in a page.
    #[must_use]
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = rows;
        self
    }

    /// Continues behind the end of a page.
    #[must_use]
    pub fn after(mut self, page: Continuation) -> Self {
        self.after = Some(page);
        self
    }

    /// Rejects a scan that violates a rule of all backends. For backends.
    ///
    /// # Errors
    /// `Invalid`, with the field's name and the rule.
    pub fn check(&self, can: &Capabilities) -> Result<(), PortError> {
        can.check_key("partition", &self.partition)?;
        if self.limit == 0 {
            return Err(PortError::invalid("limit", "must be at least 1"));
        }
        let Rows::Named(names) = &self.rows else { return Ok(()) };
        if names.len() > can.max_batch() {
            let rule = format_args!("must name at most {} rows, names {}", can.max_batch(), names.len());
            return Err(PortError::invalid("rows", rule));
        }
        names.iter().try_for_each(|name| can.check_key("rows", name))
    }

    /// Returns the remaining names of [`Rows::Named`] in the scan's order, each once; `None` for
    /// other sets. For backends.
    pub fn names(&self) -> Option<Vec<&str>> {
        let Rows::Named(names) = &self.rows else { return None };
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let after = self.after.as_ref().map(Continuation::as_str);
        match self.order {
            Order::Ascending => names.retain(|name| after.is_none_or(|after| *name > after)),
            Order::Descending => {
                names.retain(|name| after.is_none_or(|after| *name < after));
                names.reverse();
            }
        }
        Some(names)
    }

    /// Returns the bounds of the remaining rows: those of [`rows`](Self::rows) behind
    /// [`after`](Self::after). If the lower bound is above the upper one, no rows remain. Those of
    /// [`Rows::Named`] enclose other rows, too: use [`names`](Self::names). For backends.
    pub fn bounds(&self) -> (Bound<&str>, Bound<String>) {
        let (mut from, mut to) = match &self.rows {
            Rows::All => (Bound::Unbounded, Bound::Unbounded),
            Rows::Prefix(prefix) => (Bound::Included(prefix.as_str()), after_prefix(prefix)),
            Rows::Range(from, to) => (from.as_ref().map(String::as_str), to.clone()),
            Rows::Named(names) => match (names.iter().min(), names.iter().max()) {
                (Some(first), Some(last)) => (Bound::Included(first.as_str()), Bound::Included(last.clone())),
                _ => (Bound::Excluded(""), Bound::Excluded(String::new())),
            },
        };
        // A token of another scan must not widen this one.
        match (&self.after, self.order) {
            (Some(Continuation(last)), Order::Ascending) => {
                let narrows = match from {
                    Bound::Included(from) | Bound::Excluded(from) => last.as_str() >= from,
                    Bound::Unbounded => true,
                };
                if narrows {
                    from = Bound::Excluded(last);
                }
            }
            (Some(Continuation(last)), Order::Descending) => {
                let narrows = match &to {
                    Bound::Included(to) | Bound::Excluded(to) => last <= to,
                    Bound::Unbounded => true,
                };
                if narrows {
                    to = Bound::Excluded(last.clone());
                }
            }
            (None, _) => {}
        }
        (from, to)
    }
}

/// Returns the exclusive upper bound of all texts with this prefix: the prefix with its last
/// character incremented.
fn after_prefix(prefix: &str) -> Bound<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // Characters have the order of their UTF-8 bytes. The surrogates are skipped: they are not
        // characters.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            end.push(next);
            return Bound::Excluded(end.into_iter().collect());
        }
    }
    Bound::Unbounded
}

impl Rows {
    /// Returns `true` if the set contains this row.
    pub fn contains(&self, row: &str) -> bool {
        use std::ops::RangeBounds;
        match self {
            Self::All => true,
            Self::Prefix(prefix) => row.starts_with(prefix.as_str()),
            Self::Range(from, to) => {
                let bounds = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
                RangeBounds::<str>::contains(&bounds, row)
            }
            Self::Named(names) => names.iter().any(|name| name == row),
        }
    }
}

impl Continuation {
    /// Creates the token of a page that ended with this row. For backends.
    pub fn behind(row: impl Into<String>) -> Self {
        Self(row.into())
    }

    /// Returns the token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Continuation {
    fn from(text: String) -> Self {
        Self(text)
    }
}
