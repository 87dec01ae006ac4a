//! The rate limit that a server reports, in its common forms.
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::{
    hints::{LONGEST_HINT, own_date, until},
    number::{natural, split, texts, time},
};
use crate::time::Timestamp;

/// A rate limit as the server reports it. Read it from every response, also a successful one, to
/// slow down before the server rejects calls.
///
/// Three forms are read: the IETF draft's one header (`"burst";r=3;t=9`, and its earlier form
/// `limit=9, remaining=3, reset=9`), the draft's older three headers (`ratelimit-remaining` ...),
/// and `x-ratelimit-*` from before any draft. In the last form a reset above 1,000,000,000 is a
/// point in time since 1970 in seconds, and one above 1,000,000,000,000 in milliseconds. It is
/// measured against the response's own `date`, if there is one.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue};
/// use steadfast::{http::RateLimit, time::Clock};
///
/// let mut headers = HeaderMap::new();
/// let limits = r#""day";r=900;t=80000, "burst";r=0;t=9"#;
/// headers.insert("ratelimit", HeaderValue::from_static(limits));
/// let limit = RateLimit::read(&headers, Clock::default().wall()).unwrap();
/// // The limit that binds:
/// assert_eq!((limit.remaining, limit.wait()), (Some(0), Some(Duration::from_secs(9))));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RateLimit {
    /// Requests permitted in a window.
    pub limit: Option<u64>,
    /// Requests that remain in the current window.
    pub remaining: Option<u64>,
    /// Time until some or all of the limit is available again. At most [`LONGEST_HINT`].
    pub reset: Option<Duration>,
}

const ONE: HeaderName = HeaderName::from_static("ratelimit");
const THREE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const OLD: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
const OLD_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");

impl RateLimit {
    /// Reads the limit from headers; returns `None` if they have no readable form. The newest form
    /// takes precedence; of several limits, the one that binds.
    pub fn read(headers: &HeaderMap, now: Timestamp) -> Option<Self> {
        let in_seconds = |text: &str| time(text, Duration::from_secs(1));
        // The server's own date, so that different clocks do no harm.
        let now = own_date(headers).unwrap_or(now);
        let one = texts(headers, &ONE).flat_map(structured).reduce(Self::binding);
        let limit = one.or_else(|| Self::of_three(headers, &THREE, in_seconds)).or_else(|| {
            let old = Self::of_three(headers, &OLD, |text| match natural(text.split('.').next()?)? {
                0..1_000_000_000 => in_seconds(text),
                seconds @ 1_000_000_000..1_000_000_000_000 => Some(until(Timestamp::from_millis(seconds * 1000), now)),
                millis => Some(until(Timestamp::from_millis(millis), now)),
            });
            let after = texts(headers, &OLD_AFTER).filter_map(in_seconds).max();
            match (old, after) {
                (old, None) => old,
                (old, after) => Some(Self { reset: after, ..old.unwrap_or_default() }),
            }
        })?;
        Some(Self { reset: limit.reset.map(|reset| reset.min(LONGEST_HINT)), ..limit })
    }

    /// Returns the wait until the reset if nothing remains; `None` if something remains, or if the
    /// reset is unknown.
    pub fn wait(&self) -> Option<Duration> {
        if self.remaining == Some(0) { self.reset } else { None }
    }

    fn of_three(
        headers: &HeaderMap,
        [limit, remaining, reset]: &[HeaderName; 3],
        read: impl Fn(&str) -> Option<Duration>,
    ) -> Option<Self> {
        // `100, 100;w=60` is a limit with its windows: the first number is the one in force.
        let number = |text: &str| natural(text.split([',', ';']).next()?.trim());
        let all = Self {
            limit: texts(headers, limit).filter_map(number).min(),
            remaining: texts(headers, remaining).filter_map(number).min(),
            reset: texts(headers, reset).filter_map(read).max(),
        };
        (all != Self::default()).then_some(all)
    }

    /// Returns the limit of the two with less remaining; if equal, the one with the later reset.
    fn binding(self, other: Self) -> Self {
        let key = |limit: &Self| (limit.remaining.unwrap_or(u64::MAX), std::cmp::Reverse(limit.reset));
        if key(&other) < key(&self) { other } else { self }
    }
}

/// Reads the limits in one value of the draft's header, in its newer or its earlier form.
fn structured(text: &str) -> Option<RateLimit> {
    let mut flat = RateLimit::default();
    let mut named: Option<RateLimit> = None;
    for member in split(text, ',') {
        let mut parts = split(member, ';');
        match parts.next().and_then(|first| first.split_once('=')).filter(|_| !member.starts_with('"')) {
            Some(("limit", n)) => flat.limit = natural(n),
            Some(("remaining", n)) => flat.remaining = natural(n),
            Some(("reset", t)) => flat.reset = time(t, Duration::from_secs(1)),
            Some(_) => {}
            None => {
                let mut limit = RateLimit::default();
                for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                    match key {
                        "r" => limit.remaining = natural(value),
                        "t" => limit.reset = time(value, Duration::from_secs(1)),
                        _ => {}
                    }
                }
                named = Some(named.map_or(limit, |before| before.binding(limit)));
            }
        }
    }
    named.or(Some(flat)).filter(|limit| *limit != RateLimit::default())
}
