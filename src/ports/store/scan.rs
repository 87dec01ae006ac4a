//! Reading a partition page by page.
use std::ops::Bound;

use bytes::Bytes;

use super::Version;
use crate::port::{Capabilities, PortError, check_part};

/// Which rows of a partition to read, in which order, how many at once.
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
    /// The partition.
    pub partition: String,
    /// Which of its rows. All by default.
    pub rows: Rows,
    /// In which order. Ascending by default.
    pub order: Order,
    /// How many rows a page has at most. 100 by default; the backend may give fewer.
    pub limit: usize,
    /// Where the page before ended. The beginning by default.
    pub after: Option<Continuation>,
}

/// Which rows, by the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Rows {
    /// All.
    #[default]
    All,
    /// Those that begin so.
    Prefix(String),
    /// Those between.
    Range(Bound<String>, Bound<String>),
}

/// In which order rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The smallest first.
    #[default]
    Ascending,
    /// The largest first.
    Descending,
}

/// Where a page ended. Opaque: hand it back, to the same scan; as text it can travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation(String);

/// A row as a scan gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its key in the partition.
    pub row: String,
    /// What is stored.
    pub value: Bytes,
    /// Which write stored it.
    pub version: Version,
}

/// One page of a partition, as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The rows, in the scan's order.
    pub rows: Vec<Row>,
    /// How to go on; `None` after the last page.
    pub next: Option<Continuation>,
}

impl Scan {
    /// All rows of this partition, ascending, 100 a page.
    pub fn partition(partition: impl Into<String>) -> Self {
        Self { partition: partition.into(), rows: Rows::All, order: Order::Ascending, limit: 100, after: None }
    }

    /// Only rows that begin so.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.rows = Rows::Prefix(prefix.into());
        self
    }

    /// Only rows between.
    #[must_use]
    pub fn range(mut self, from: Bound<String>, to: Bound<String>) -> Self {
        self.rows = Rows::Range(from, to);
        self
    }

    /// The largest first.
    #[must_use]
    pub fn descending(mut self) -> Self {
        self.order = Order::Descending;
        self
    }

    /// At most so many rows a page.
    #[must_use]
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = rows;
        self
    }

    /// Goes on where a page ended.
    #[must_use]
    pub fn after(mut self, page: Continuation) -> Self {
        self.after = Some(page);
        self
    }

    /// Refuses what breaks a rule that every backend has. For backends.
    ///
    /// # Errors
    /// `Invalid`, with the field's name and the rule.
    pub fn check(&self, can: &Capabilities) -> Result<(), PortError> {
        check_part("partition", &self.partition, can)?;
        if self.limit == 0 { Err(PortError::invalid("limit", "must be at least 1")) } else { Ok(()) }
    }

    /// The bounds of the rows that are still to come: those of [`rows`](Self::rows), behind [`after`](Self::after). Where the
    /// lower one is above the upper there are none. For backends.
    pub fn bounds(&self) -> (Bound<&str>, Bound<String>) {
        let (mut from, mut to) = match &self.rows {
            Rows::All => (Bound::Unbounded, Bound::Unbounded),
            Rows::Prefix(prefix) => (Bound::Included(prefix.as_str()), after_prefix(prefix)),
            Rows::Range(from, to) => (from.as_ref().map(String::as_str), to.clone()),
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

/// What every text with this prefix is below: the prefix with its last character raised by one.
fn after_prefix(prefix: &str) -> Bound<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // The order of characters is that of their bytes in UTF-8. Over the surrogates, which are no characters.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            end.push(next);
            return Bound::Excluded(end.into_iter().collect());
        }
    }
    Bound::Unbounded
}

impl Rows {
    /// Whether this row is one of them.
    pub fn contains(&self, row: &str) -> bool {
        use std::ops::RangeBounds;
        match self {
            Self::All => true,
            Self::Prefix(prefix) => row.starts_with(prefix.as_str()),
            Self::Range(from, to) => {
                let bounds = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
                RangeBounds::<str>::contains(&bounds, row)
            }
        }
    }
}

impl Continuation {
    /// Behind this row. For backends.
    pub fn behind(row: impl Into<String>) -> Self {
        Self(row.into())
    }

    /// As text, to travel.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Continuation {
    fn from(text: String) -> Self {
        Self(text)
    }
}
