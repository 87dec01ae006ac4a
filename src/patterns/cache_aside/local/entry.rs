//! An entry of the local tier, and its freshness at a given time. The module is a pure state
//! machine.
//
// Entries are immutable except for one atomic: the time of the last access, for sliding expiry. Hits
// move it forward with `fetch_max`, so concurrent hits may come in any order and the latest access
// wins. The value is complete in itself and publishes no other memory, so `Relaxed` suffices. A
// reader that sees an older time can only expire the entry too early, never serve it too long.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::super::{
    CacheAsideConfig,
    loaded::ValueSettings,
    local::tags::Slot,
    refresh::RefreshAhead,
    validator::{Stale, Validator},
};
use crate::{
    backoff::scaled,
    entropy::Entropy,
    store::Version,
    time::{Instant, nanos},
};

/// A value with its times.
#[derive(Clone)]
pub(crate) struct Entry<V> {
    pub(crate) hot: Hot<V>,
    pub(crate) rest: Rest,
}

/// The part of an entry that a plain hit needs; it is copied on each hit.
#[derive(Clone)]
pub(crate) struct Hot<V> {
    /// The value; `None` if the source has nothing under the key.
    pub(crate) value: Option<V>,
    /// Time before which a hit needs no further check. The clock's origin if each hit needs one.
    pub(crate) plain_until: Instant,
    /// Number of the tags' sequence when the load began.
    pub(crate) born: u64,
}

/// The rest of an entry.
#[derive(Clone)]
pub(crate) struct Rest {
    pub(crate) fresh_until: Instant,
    /// Time until which the value may be served while the source fails.
    pub(crate) stale_until: Instant,
    /// Time before which the source is not asked again after a failed load.
    retry_at: Instant,
    pub(crate) ahead: RefreshAhead,
    /// Version of the value in the remote tier.
    pub(crate) version: Option<Version>,
    /// Time at which the entry was stored.
    pub(crate) stored: Instant,
    age: Duration,
    pub(crate) weight: u64,
    extra: Option<Arc<Extra>>,
}

/// Instant that no reading of a clock lies before.
const NEVER: Instant = Instant::from_nanos(0);

impl Rest {
    /// Creates the rest of an entry of weight 1 that has nothing but its time to live.
    pub(crate) const fn plain(fresh_until: Instant, stored: Instant) -> Self {
        Self {
            fresh_until,
            stale_until: NEVER,
            retry_at: NEVER,
            ahead: RefreshAhead::NEVER,
            version: None,
            stored,
            age: Duration::ZERO,
            weight: 1,
            extra: None,
        }
    }

    fn is_plain(&self) -> bool {
        let Self { fresh_until, stale_until, retry_at, ahead, version, stored: _, age, weight, extra } = self;
        *fresh_until > NEVER
            && (*stale_until, *retry_at, *ahead) == (NEVER, NEVER, RefreshAhead::NEVER)
            && (*age, *weight) == (Duration::ZERO, 1)
            && version.is_none()
            && extra.is_none()
    }
}

/// Data that only some entries have.
pub(crate) struct Extra {
    /// Counters of the entry's tags.
    pub(crate) tags: Box<[Slot]>,
    /// For sliding expiry: the limit, and the time of the last access. All copies share it behind a
    /// pointer, so a hit writes the time in place and never restores an entry that was removed
    /// meanwhile.
    idle: Option<(Duration, AtomicU64)>,
    memo: Option<Box<Memo>>,
}

/// Data for a conditional refresh.
struct Memo {
    validator: Validator,
    /// Names of the value's tags, which a value that has not changed keeps.
    tags: Vec<String>,
}

/// The data of a value that is to be stored.
pub(crate) struct Birth<'a> {
    pub(crate) born: u64,
    pub(crate) ttl: Duration,
    /// Maximum time in the local tier, if a remote tier keeps the value longer.
    pub(crate) local: Option<Duration>,
    /// Time since the load.
    pub(crate) age: Duration,
    pub(crate) took: Duration,
    pub(crate) version: Option<Version>,
    pub(crate) tags: Box<[Slot]>,
    pub(crate) names: &'a [String],
    pub(crate) settings: &'a ValueSettings,
    pub(crate) weight: u64,
}

/// The freshness of an entry at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// Fresh, and due for a refresh.
    Due,
    /// Expired, but servable, and the source must not be asked yet.
    Throttled,
    /// Expired, but servable if the source fails.
    Expired,
}

impl<V> Entry<V> {
    /// Returns the time at which the entry was stored, if that and the hot part are all that it
    /// has: see [`Rest::plain`].
    pub(crate) fn plain_since(&self) -> Option<Instant> {
        let rest = &self.rest;
        (rest.is_plain() && self.hot.plain_until == rest.fresh_until).then_some(rest.stored)
    }

    pub(crate) fn new(
        value: Option<V>,
        birth: Birth<'_>,
        config: &CacheAsideConfig,
        now: Instant,
        entropy: &Entropy,
    ) -> Self {
        let Birth { born, ttl, local, age, took, version, tags, names, settings, weight } = birth;
        let ends = ttl.saturating_sub(age);
        let ends = local.map_or(ends, |local| local.min(ends));
        // Jitter is in proportion to the time to live: an entry that lives shorter is spread less.
        let jitter = match settings.jitter {
            Some(jitter) if ends < ttl => scaled(jitter, share(ends, ttl)),
            Some(jitter) => jitter,
            None if ends < config.ttl => scaled(config.jitter, share(ends, config.ttl)),
            None => config.jitter,
        };
        let fresh_until = now + jittered(ends, jitter, entropy);
        let stale_until = match config.stale {
            Some(stale) if value.is_some() => {
                let max_age = settings.stale_max_age.unwrap_or(stale.max_age);
                (now + max_age.saturating_sub(age)).max(fresh_until)
            }
            // Not even within its time to live: it may have expired by sliding or precede a gap in the notices.
            _ => NEVER,
        };
        let ahead = match value {
            Some(_) => RefreshAhead::new(config, now, ttl, age, took),
            None => RefreshAhead::NEVER,
        };
        let idle = config.sliding.map(|idle| (idle, AtomicU64::new(now.as_nanos())));
        let memo = settings.validator.as_ref().filter(|_| value.is_some());
        let memo = memo.map(|validator| Box::new(Memo { validator: validator.clone(), tags: names.to_vec() }));
        let needs_check = idle.is_some() || !tags.is_empty();
        let extra = (needs_check || memo.is_some()).then(|| Arc::new(Extra { tags, idle, memo }));
        let mut plain_until = NEVER;
        if value.is_some() && !needs_check {
            plain_until = ahead.impossible_until(fresh_until, config.xfetch);
        }
        let (stored, retry_at) = (now, NEVER);
        Self {
            hot: Hot { value, plain_until, born },
            rest: Rest { fresh_until, stale_until, retry_at, ahead, version, stored, age, weight, extra },
        }
    }

    /// Returns the freshness now, or `None` if the entry is too old to be served. `above_floor` is
    /// `true` if no notice of an invalidation can have been missed. The caller checks for
    /// invalidated tags.
    pub(crate) fn freshness(
        &self,
        now: Instant,
        above_floor: bool,
        xfetch: Option<f64>,
        entropy: &Entropy,
    ) -> Option<Freshness> {
        if above_floor && now < self.rest.fresh_until && !self.is_idle(now) {
            let is_due = self.rest.ahead.is_due(now, self.rest.fresh_until - now, xfetch, entropy);
            return Some(if is_due { Freshness::Due } else { Freshness::Fresh });
        }
        match (now < self.rest.stale_until, now < self.rest.retry_at) {
            (true, true) => Some(Freshness::Throttled),
            (true, false) => Some(Freshness::Expired),
            (false, _) => None,
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        let idle = self.rest.extra.as_ref().and_then(|extra| extra.idle.as_ref());
        idle.is_some_and(|(limit, asked)| now - Instant::from_nanos(asked.load(Relaxed)) >= *limit)
    }

    /// Returns the time since the load.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        self.rest.age.saturating_add(now - self.rest.stored)
    }

    /// Records an access.
    pub(crate) fn touch(&self, now: Instant) {
        if let Some((_, asked)) = self.rest.extra.as_ref().and_then(|extra| extra.idle.as_ref()) {
            asked.fetch_max(now.as_nanos(), Relaxed);
        }
    }

    pub(crate) fn tags(&self) -> &[Slot] {
        self.rest.extra.as_ref().map_or(&[], |extra| &extra.tags)
    }

    /// Returns the value with its validator, if it has one.
    pub(crate) fn into_stale(self) -> Option<Stale<V>> {
        let extra = self.rest.extra?;
        let memo = extra.memo.as_ref()?;
        Some(Stale::new(self.hot.value?, memo.validator.clone(), memo.tags.clone()))
    }

    /// Returns the entry with the version of its value in the remote tier.
    pub(crate) fn with_version(mut self, version: Version) -> Self {
        self.rest.version = Some(version);
        self
    }

    /// Returns `true` if `other` is the same entry, apart from marks that were set since.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        (self.hot.born, self.rest.fresh_until, self.rest.stale_until)
            == (other.hot.born, other.rest.fresh_until, other.rest.stale_until)
    }

    /// Marks the entry as being refreshed, so that no further refresh starts.
    pub(crate) fn refreshing(mut self) -> Self {
        self.rest.ahead = RefreshAhead::NEVER;
        if self.hot.plain_until > NEVER {
            self.hot.plain_until = self.rest.fresh_until;
        }
        self
    }

    /// Marks the entry after a failed load: the source is not asked again before this time.
    pub(crate) fn throttled(mut self, until: Instant) -> Self {
        self.rest.retry_at = until;
        self
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64()
}

/// Returns a time to live drawn evenly from `[ttl, ttl + jitter]`.
pub(crate) fn jittered(ttl: Duration, jitter: Duration, entropy: &Entropy) -> Duration {
    let nanos = nanos(jitter);
    if nanos == 0 { ttl } else { ttl.saturating_add(Duration::from_nanos(entropy.up_to(nanos))) }
}
