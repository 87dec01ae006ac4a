//! Scripts of the store: their arguments and their answers.
use std::{ops::Bound, sync::LazyLock};

use bytes::Bytes;
use redis::{Value, from_redis_value};

use super::script::{Call, Script, digits, micros};
use crate::{
    port::{FencingToken, PortError, PortErrorKind},
    store::{Continuation, Order, Page, Precondition, Record, Row, Scan, Sequence, StoreError, Version, Write},
};

macro_rules! writing {
    ($file:literal) => {
        LazyLock::new(|| {
            let begin = concat!(include_str!("lua/numbers.lua"), include_str!("lua/rows.lua"));
            let file = include_str!(concat!("lua/", $file, ".lua"));
            Script::writing(&[begin, file, include_str!("lua/sweep.lua")].concat()).shared()
        })
    };
}

static READ: Script = Script::fields();
static READ_WITH_TIME: Script = Script::time_and_fields();
static PUT: LazyLock<Script> = writing!("put");
static WRITE: LazyLock<Script> = writing!("write");
static SCAN: LazyLock<Script> = LazyLock::new(|| Script::reading(include_str!("lua/scan.lua")));
static NAMED: LazyLock<Script> = LazyLock::new(|| Script::reading(include_str!("lua/named.lua")));

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

/// Creates the call of the read of a row. Without the time it reads records that have no end.
pub(super) fn read(root: &str, row: &str, with_time: bool) -> Call {
    let mut call = Call::new(if with_time { &READ_WITH_TIME } else { &READ }, format!("{root}rows"));
    call.items(2).arg(format!("h{row}")).arg(format!("v{row}"));
    call
}

/// Creates the call of writes, which are made together.
pub(super) fn write(root: String, writes: &[Write]) -> Call {
    let arguments = |write: &Write| match write {
        Write::Put { .. } => 7,
        Write::Delete { .. } | Write::Append { .. } => 4,
        Write::Check { .. } => 3,
    };
    if let [Write::Put { row, value, options }] = writes
        && (options.fence, options.ttl, Sequence::of_row(row)) == (None, None, None)
    {
        let mut call = Call::new(&PUT, root);
        call.items(1).arg(row).arg(required(options.when)).arg(&value[..]);
        return call;
    }
    let mut call = Call::new(&WRITE, root);
    call.items(1).arg(writes.iter().map(arguments).sum::<usize>()).second_list();
    writes.iter().for_each(|write| add(&mut call, write));
    call
}

fn add(call: &mut Call, write: &Write) {
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
    let [answer]: [Vec<String>; 1] = from_redis_value::<Vec<_>>(answer).ok()?.try_into().ok()?;
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

/// The answer to the read of a row.
pub(super) enum Found {
    Record(Option<Record>),
    /// The record has an end: the time is needed.
    Ending,
}

/// Parses the answer to a [`read`]. `None` is another form than expected.
pub(super) fn found(answer: Value, with_time: bool) -> Option<Found> {
    let (time, fields) = if with_time {
        let [time, fields]: [Value; 2] = array(answer)?.try_into().ok()?;
        (Some(time), fields)
    } else {
        (None, answer)
    };
    let [head, value]: [Value; 2] = array(fields)?.try_into().ok()?;
    let Value::BulkString(head) = head else { return Some(Found::Record(None)) };
    let (version, end) = std::str::from_utf8(&head).ok()?.split_at_checked(20)?;
    if !end.is_empty() {
        let Some(time) = time else { return Some(Found::Ending) };
        let (seconds, micros): (u64, u64) = from_redis_value(time).ok()?;
        if end.parse::<u64>().ok()? <= seconds.checked_mul(1_000_000)?.checked_add(micros)? {
            return Some(Found::Record(None));
        }
    }
    Some(Found::Record(Some(Record::new(bytes(value)?, Version::new(version.parse().ok()?)))))
}

/// Creates the call of a scan of the partition with this root.
pub(super) fn scan(scan: &Scan, root: String, limit: usize) -> Call {
    if let Some(names) = scan.names() {
        let mut call = Call::new(&NAMED, root);
        call.arg(limit);
        for name in names {
            call.arg(name);
        }
        return call;
    }
    let (from, to) = scan.bounds();
    let bound = |bound: Bound<&str>, unbounded: &str| match bound {
        Bound::Included(row) => format!("[{row}"),
        Bound::Excluded(row) => format!("({row}"),
        Bound::Unbounded => unbounded.to_owned(),
    };
    let (from, to) = (bound(from, "-"), bound(to.as_ref().map(String::as_str), "+"));
    let mut call = Call::new(&SCAN, root);
    match scan.order {
        Order::Ascending => call.arg("ZRANGEBYLEX").arg(from).arg(to),
        Order::Descending => call.arg("ZREVRANGEBYLEX").arg(to).arg(from),
    };
    call.arg(limit).arg(PAGE_BYTES).arg(limit + EXPIRED);
    call
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
