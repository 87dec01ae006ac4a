//! Keys of an index, and the names of their entries.
use std::fmt;

use crate::{hash::stable_hash, store::Key};

/// Number of partitions of an index. It is part of the stored form.
const PARTITIONS: u64 = 16;

/// End of a part of a name. In a part [`ESCAPED`] stands for its first character, so that no part
/// has the end of another, and names have the order of their parts.
const END: &str = "\u{1}\u{1}";
const ESCAPED: &str = "\u{1}\u{2}";

/// Beginning of the rows of entries in the partition of their row.
const BESIDE: &str = "index/";

/// A key under which an index has a row.
///
/// The first part is looked up as it is, and the second one by its order and by a prefix. A text is
/// a key with an empty second part. Leave zero bytes out of keys: they sort before the end of a
/// part.
///
/// ```
/// use steadfast::index_table::IndexKey;
///
/// let key = IndexKey::new("Weaver", "Alien");
/// assert_eq!((key.first(), key.second()), ("Weaver", "Alien"));
/// assert_eq!(IndexKey::from("Weaver"), IndexKey::new("Weaver", ""));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexKey {
    first: String,
    second: String,
}

impl IndexKey {
    /// Creates a key of two parts.
    pub fn new(first: impl Into<String>, second: impl Into<String>) -> Self {
        Self { first: first.into(), second: second.into() }
    }

    /// Returns the part that is looked up.
    pub fn first(&self) -> &str {
        &self.first
    }

    /// Returns the part that orders the rows of one first part.
    pub fn second(&self) -> &str {
        &self.second
    }
}

impl From<String> for IndexKey {
    fn from(first: String) -> Self {
        Self::new(first, "")
    }
}

impl From<&str> for IndexKey {
    fn from(first: &str) -> Self {
        Self::new(first, "")
    }
}

impl fmt::Display for IndexKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.first)?;
        if self.second.is_empty() { Ok(()) } else { write!(f, "/{:?}", self.second) }
    }
}

/// The place of a row of the table, as an index has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct RowKey {
    /// The partition key.
    pub partition: String,
    /// The row key within the partition.
    pub row: String,
}

impl RowKey {
    /// Returns the key, as a store takes it.
    pub fn as_key(&self) -> Key<'_> {
        Key::new(&self.partition, &self.row)
    }
}

impl From<Key<'_>> for RowKey {
    fn from(key: Key<'_>) -> Self {
        Self { partition: key.partition.to_owned(), row: key.row.to_owned() }
    }
}

fn escape(part: &str) -> String {
    part.replace('\u{1}', ESCAPED)
}

/// Returns the partition of an index that has the entries of this first part.
pub(super) fn partition_of(index: &str, first: &str) -> String {
    partition(index, stable_hash(first.as_bytes()) % PARTITIONS)
}

fn partition(index: &str, nth: u64) -> String {
    format!("index/{index}/{nth:02}")
}

/// Returns all partitions of an index.
pub(super) fn partitions(index: &str) -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(move |nth| partition(index, nth))
}

/// Returns `true` for the partitions of an index, and that of its state.
pub(super) fn is_partition_of(index: &str, partition: &str) -> bool {
    let rest = partition.strip_prefix("index/").and_then(|rest| rest.strip_prefix(index));
    rest.is_some_and(|rest| rest.is_empty() || partitions(index).any(|of| of == partition))
}

/// Returns the beginning of the entries of this first part whose second part has this prefix.
pub(super) fn prefix(first: &str, second: &str) -> String {
    format!("{}{END}{}", escape(first), escape(second))
}

/// Returns the row of the entry of a key that one row at most has.
pub(super) fn unique_entry(key: &IndexKey) -> String {
    prefix(&key.first, &key.second)
}

/// Returns the row of the entry of a key for this row of the table.
pub(super) fn entry(key: &IndexKey, of: Key<'_>) -> String {
    format!("{}{END}{}{END}{}", unique_entry(key), escape(of.partition), escape(of.row))
}

/// Returns `true` for a row that begins as an entry in the partition of its row does.
pub(super) fn is_beside(row: &str) -> bool {
    row.starts_with(BESIDE)
}

/// Returns the beginning of all entries of an index in the partition of their row. The name ends as
/// a part does, so that no index has the entries of another.
pub(super) fn beside(index: &str) -> String {
    format!("{BESIDE}{}{END}", escape(index))
}

/// Returns the row of an entry in the partition of its row.
pub(super) fn entry_beside(index: &str, key: &IndexKey, row: &str) -> String {
    format!("{}{}{END}{}", beside(index), unique_entry(key), escape(row))
}

/// Splits the row of an entry in the partition of its row. `None` if it is the name of no entry of
/// the index.
pub(super) fn parse_beside(index: &str, entry: Key<'_>) -> Option<(IndexKey, RowKey)> {
    let (3, [first, second, row, _]) = parts(entry.row.strip_prefix(&*beside(index))?)? else { return None };
    Some((IndexKey { first, second }, RowKey { partition: entry.partition.to_owned(), row }))
}

/// Splits the row of an entry into the key, and the row of the table if it is named. `None` if it
/// is the name of no entry.
pub(super) fn parse(entry: &str) -> Option<(IndexKey, Option<RowKey>)> {
    let (count, [first, second, partition, row]) = parts(entry)?;
    let of = match count {
        2 => None,
        4 => Some(RowKey { partition, row }),
        _ => return None,
    };
    Some((IndexKey { first, second }, of))
}

/// Splits a name into its parts, of which it has at most four, and returns their number. `None` if
/// it was not made of any.
fn parts(name: &str) -> Option<(usize, [String; 4])> {
    let (mut nth, mut parts, mut rest) = (0, <[String; 4]>::default(), name);
    // The first characters of ends and of escaped ones: a lone one is neither.
    while let Some((before, behind)) = rest.split_once('\u{1}') {
        parts.get_mut(nth)?.push_str(before);
        let mut chars = behind.chars();
        match chars.next()? {
            '\u{1}' => nth += 1,
            '\u{2}' => parts.get_mut(nth)?.push('\u{1}'),
            _ => return None,
        }
        rest = chars.as_str();
    }
    parts.get_mut(nth)?.push_str(rest);
    Some((nth + 1, parts))
}
