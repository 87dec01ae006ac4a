//! The time after which a server asks its caller to return.
use std::time::{Duration, UNIX_EPOCH};

use http::{
    HeaderMap, HeaderName,
    header::{DATE, RETRY_AFTER},
};

use super::{
    RateLimit,
    number::{texts, time},
};
use crate::time::Timestamp;

/// Maximum wait of a hint; a longer one is cut to it.
pub const LONGEST_HINT: Duration = Duration::from_secs(24 * 3600);

static IN_MILLIS: [HeaderName; 2] =
    [HeaderName::from_static("retry-after-ms"), HeaderName::from_static("x-ms-retry-after-ms")];

/// Returns the wait before the next call that these headers ask for. `now` is the wall time, for a
/// date in a response without a `date`.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue};
/// use steadfast::{http::retry_after, time::Clock};
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(retry_after(&headers, Clock::default().wall()), None);
/// headers.insert("retry-after", HeaderValue::from_static("Sat, 21 Nov 2026 09:00:30 GMT"));
/// headers.insert("date", HeaderValue::from_static("Sat, 21 Nov 2026 09:00:00 GMT"));
/// assert_eq!(retry_after(&headers, Clock::default().wall()), Some(Duration::from_secs(30)));
/// ```
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let plain = texts(headers, &RETRY_AFTER).filter_map(|text| after(text, headers, now));
    let millis =
        IN_MILLIS.iter().flat_map(|name| texts(headers, name)).filter_map(|t| time(t, Duration::from_millis(1)));
    let wait = plain.chain(millis).max();
    let wait = wait.or_else(|| RateLimit::read(headers, now)?.wait());
    wait.map(|wait| wait.min(LONGEST_HINT))
}

/// Reads one value of `retry-after`: seconds, a list of them (sent by mistake), or a date.
fn after(text: &str, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return text.split(',').filter_map(|part| time(part.trim(), Duration::from_secs(1))).max();
    }
    Some(until(date(text)?, own_date(headers).unwrap_or(now)))
}

/// Returns the time of the response by the server's clock.
pub(super) fn own_date(headers: &HeaderMap) -> Option<Timestamp> {
    date(headers.get(DATE)?.to_str().ok()?)
}

/// Reads a date in each of HTTP's three forms.
fn date(text: &str) -> Option<Timestamp> {
    let since = httpdate::parse_http_date(text.trim()).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// Returns the time from `now` to `then`; zero if `then` is past.
pub(super) fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis(then.as_millis().saturating_sub(now.as_millis()))
}
