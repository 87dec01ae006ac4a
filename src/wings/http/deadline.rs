//! A deadline as a header: the caller sends the remaining time of a call, the server reads it.
//!
//! The header holds a remaining time, not a point in time, so that the two clocks need not agree;
//! the time on the network is not counted.
//!
//! ```
//! use std::time::Duration;
//! use http::HeaderMap;
//! use steadfast::{Pipeline, call::AttemptInfo, http::deadline, time::Clock, timeout::Timeout};
//!
//! let (clock, time) = Clock::manual();
//! let mut headers = HeaderMap::new();
//! // The caller, in each attempt:
//! let timeout = Timeout::builder(Duration::from_secs(2)).clock(&clock).build();
//! let pipeline = Pipeline::new().then(timeout);
//! time.block_on(pipeline.call_with(|attempt| {
//!     if let Some(left) = attempt.remaining(clock.now()) {
//!         deadline::write(&mut headers, left);
//!     }
//!     async { Ok::<_, ()>(()) }
//! })).unwrap();
//! assert_eq!(headers["x-request-timeout-ms"], "2000");
//!
//! // The server: its own time-outs end no later.
//! let left = deadline::read(&headers).unwrap();
//! let outer = AttemptInfo::with_deadline(clock.now() + left);
//! time.block_on(pipeline.call_within(outer, async || Ok::<_, ()>(()))).unwrap();
//! ```
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::number::{natural, texts, time};

/// Name of the plain header: whole milliseconds.
pub const TIMEOUT_MS: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// Name of gRPC's header: at most eight digits and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Units of gRPC's header, finest first.
const UNITS: [(char, Duration); 6] = [
    ('n', Duration::from_nanos(1)),
    ('u', Duration::from_micros(1)),
    ('m', Duration::from_millis(1)),
    ('S', Duration::from_secs(1)),
    ('M', Duration::from_secs(60)),
    ('H', Duration::from_secs(3600)),
];

/// Returns the remaining time by the plain header and gRPC's; of several the shortest. An
/// unreadable value counts as absent.
pub fn read(headers: &HeaderMap) -> Option<Duration> {
    let plain = read_as(headers, &TIMEOUT_MS);
    plain.into_iter().chain(texts(headers, &GRPC_TIMEOUT).filter_map(grpc)).min()
}

/// Returns the remaining time by a header of milliseconds with another name, such as Envoy's
/// `x-envoy-expected-rq-timeout-ms`.
pub fn read_as(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    texts(headers, name).filter_map(|text| time(text, Duration::from_millis(1))).min()
}

/// Writes the remaining time into the plain header, rounded down; replaces a present value.
pub fn write(headers: &mut HeaderMap, left: Duration) {
    write_as(headers, TIMEOUT_MS, left);
}

/// Writes the remaining time in milliseconds into a header with another name, as [`write()`] does.
pub fn write_as(headers: &mut HeaderMap, name: HeaderName, left: Duration) {
    headers.insert(name, HeaderValue::from(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
}

/// Writes the remaining time into gRPC's header, rounded down to the unit in which eight digits
/// suffice.
pub fn write_grpc(headers: &mut HeaderMap, left: Duration) {
    const MOST: u128 = 99_999_999;
    let in_unit = |(letter, unit): (char, Duration)| (left.as_nanos() / unit.as_nanos(), letter);
    let (n, letter) = UNITS.into_iter().map(in_unit).find(|(n, _)| *n <= MOST).unwrap_or((MOST, 'H'));
    if let Ok(value) = HeaderValue::try_from(format!("{n}{letter}")) {
        headers.insert(GRPC_TIMEOUT, value);
    }
}

fn grpc(text: &str) -> Option<Duration> {
    let (letter, unit) = UNITS.into_iter().find(|(letter, _)| text.ends_with(*letter))?;
    let digits = text.strip_suffix(letter)?;
    if digits.len() > 8 {
        return None;
    }
    Some(Duration::from_nanos(natural(digits)?.saturating_mul(u64::try_from(unit.as_nanos()).ok()?)))
}
