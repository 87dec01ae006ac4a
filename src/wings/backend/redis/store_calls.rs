//! Scripts of the store: their arguments and their answers.
use std::{ops::Bound, sync::LazyLock};

use bytes::Bytes;
use redis::{Cmd, Value, from_redis_value};

use super::script::{Script, digits, micros};
use crate::{
    port::{FencingToken, PortError, PortErrorKind},
    store::{Continuation, Order, Page, Precondition, Record, Row, Scan, Sequence, StoreError, Version, Write},
};

pub(super) static GET: LazyLock<Script> = LazyLock::new(|| Script::reading(include_str!("lua/get.lua")));
pub(super) static WRITE: LazyLock<Script> = LazyLock::new(|| Script::writing(include_str!("lua/write.lua")));
pub(super) static SCAN: LazyLock<Script> = LazyLock::new(|| Script::reading(include_str!("lua/scan.lua")));
pub(super) static NAMED: LazyLock<Script> = LazyLock::new(|| Script::reading(include_str!("lua/named.lua")));

/// Parts of a partition, in the order in which scripts expect their keys.
pub(super) const PARTS: [&str; 5] = ["heads", "values", "index", "ends", "meta"];

/// Maximum size of a page: it ends with the row that reaches this many bytes.
const PAGE_BYTES: usize = 1 << 20;

/// Maximum number of expired rows that a page looks at, beside its own.
const EXPIRED: usize = 1000;

/// The result of a write.
pub(super) enum Applied {
    Put(Version),
    Deleted(bool),
    Checked,
}

/// Adds a write to a call.
pub(super) fn add(call: &mut Cmd, write: &Write) {
    let fence = write.fence().map(|token| digits(token.as_u64())).unwrap_or_default();
    let when = required(write.when());
    match write {
        Write::Put { row, value, options } => {
            let life = options.ttl.map(|ttl| micros(ttl).to_string()).unwrap_or_default();
            let sequence = Sequence::of_row(row).map_or("", Sequence::as_str);
            call.arg("p").arg(row).arg(when).arg(fence).arg(life).arg(sequence).arg(&value[..]);
        }
        Write::Delete { row, .. } => {
            call.arg("d").arg(row).arg(when).arg(fence);
        }
        Write::Check { row, .. } => {
            call.arg("c").arg(row).arg(when);
        }
        Write::Append { sequence, value, after } => {
            call.arg("a").arg(sequence).arg(after.map(digits).unwrap_or_default()).arg(&value[..]);
        }
    }
}

fn required(when: Precondition) -> String {
    match when {
        Precondition::Any => String::new(),
        Precondition::Absent => "-".to_owned(),
        Precondition::Version(version) => digits(version.as_u64()),
    }
}

/// Parses the answer to the writes: the results, or the refusal. `None` is another form.
pub(super) fn results(answer: Value, writes: &[Write]) -> Option<Result<Vec<Applied>, StoreError>> {
    let answer: Vec<String> = from_redis_value(answer).ok()?;
    let (reason, rest) = answer.split_first()?;
    if reason != "ok" {
        return refusal(reason, rest, writes).map(Err);
    }
    let applied = |(write, result): (&Write, &String)| match write {
        Write::Put { .. } | Write::Append { .. } => Some(Applied::Put(Version::new(result.parse().ok()?))),
        Write::Delete { .. } => Some(Applied::Deleted(result == "1")),
        Write::Check { .. } => Some(Applied::Checked),
    };
    (writes.len() == rest.len()).then(|| writes.iter().zip(rest).map(applied).collect::<Option<_>>())?.map(Ok)
}

fn refusal(reason: &str, rest: &[String], writes: &[Write]) -> Option<StoreError> {
    let [i, detail] = rest else { return None };
    let i: usize = i.parse().ok()?;
    let error = match (reason, writes.get(i)?) {
        ("conflict", _) if detail.is_empty() => StoreError::Conflict { write: i, current: None },
        ("conflict", _) => StoreError::Conflict { write: i, current: Some(Version::new(detail.parse().ok()?)) },
        ("fenced", _) => StoreError::Fenced { write: i, highest: FencingToken::new(detail.parse().ok()?) },
        ("put", Write::Put { row, .. }) => Sequence::of_row(row)?.refuse_put(row),
        ("first", Write::Append { sequence, .. }) => Sequence::new(sequence).refuse_first(detail),
        ("full", Write::Append { sequence, .. }) => Sequence::new(sequence).next(Sequence::LAST, None).err()?,
        _ => return None,
    };
    Some(error)
}

/// Parses a record. The outer `None` is another form than expected.
pub(super) fn record(answer: Value) -> Option<Option<Record>> {
    let mut parts = array(answer)?.into_iter();
    let Some(version) = parts.next() else { return Some(None) };
    let version: u64 = from_redis_value(version).ok()?;
    Some(Some(Record::new(bytes(parts.next()?)?, Version::new(version))))
}

/// Creates the call of a scan with these keys of the partition.
pub(super) fn scan_call(scan: &Scan, keys: &[String; 5], limit: usize) -> (&'static Script, Cmd) {
    if let Some(names) = scan.names() {
        let mut call = NAMED.command(&keys[..2]);
        call.arg(limit);
        for name in names {
            call.arg(name);
        }
        return (&NAMED, call);
    }
    let (from, to) = scan.bounds();
    let bound = |bound: Bound<&str>, unbounded: &str| match bound {
        Bound::Included(row) => format!("[{row}"),
        Bound::Excluded(row) => format!("({row}"),
        Bound::Unbounded => unbounded.to_owned(),
    };
    let (from, to) = (bound(from, "-"), bound(to.as_ref().map(String::as_str), "+"));
    let mut call = SCAN.command(&keys[..3]);
    match scan.order {
        Order::Ascending => call.arg("ZRANGEBYLEX").arg(from).arg(to),
        Order::Descending => call.arg("ZREVRANGEBYLEX").arg(to).arg(from),
    };
    call.arg(limit).arg(PAGE_BYTES).arg(limit + EXPIRED);
    (&SCAN, call)
}

/// Parses a page. `None` is another form than expected.
pub(super) fn page(answer: Value) -> Option<Page> {
    let mut parts = array(answer)?.into_iter();
    let next: String = from_redis_value(parts.next()?).ok()?;
    let mut rows = Vec::with_capacity(parts.len() / 3);
    while let Some(row) = parts.next() {
        let row: String = from_redis_value(row).ok()?;
        let version: u64 = from_redis_value(parts.next()?).ok()?;
        rows.push(Row::new(row, bytes(parts.next()?)?, Version::new(version)));
    }
    Some(Page::new(rows, (!next.is_empty()).then(|| Continuation::behind(next))))
}

fn array(answer: Value) -> Option<Vec<Value>> {
    if let Value::Array(parts) = answer { Some(parts) } else { None }
}

fn bytes(value: Value) -> Option<Bytes> {
    if let Value::BulkString(bytes) = value { Some(Bytes::from(bytes)) } else { None }
}

/// Returns the error of a put without a version, which no script answers.
pub(super) fn no_version() -> PortError {
    PortError::new(PortErrorKind::Other, "redis: a put returned no version")
}
