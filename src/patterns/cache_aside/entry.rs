//! What the local tier holds for a key, and what it is worth at a moment: a pure machine.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{CacheAsideConfig, tags::Slot};
use crate::{
    backoff::scaled,
    entropy::Entropy,
    store::Version,
    time::{Instant, nanos},
};

/// A value with its times.
#[derive(Clone)]
pub(super) struct Entry<V> {
    pub(super) hot: Hot<V>,
    pub(super) rest: Rest,
}

/// What a plain hit needs: it is copied on each.
#[derive(Clone)]
pub(super) struct Hot<V> {
    /// `None`: the source has nothing.
    pub(super) value: Option<V>,
    /// Before this a hit needs no second thought. The origin where each does.
    pub(super) plain_until: Instant,
    /// The number of the sequence when its load began.
    pub(super) born: u64,
}

/// What else is known of it.
#[derive(Clone)]
pub(super) struct Rest {
    pub(super) fresh_until: Instant,
    /// Until when it may be served while the source fails.
    pub(super) stale_until: Instant,
    /// When it is to be refreshed; never, once that was begun.
    refresh_at: Instant,
    /// Before this the source is not asked again: a load failed.
    retry_at: Instant,
    /// How long its load took, for XFetch; zero once a refresh was begun.
    pub(super) took: Duration,
    /// The remote tier's version of it.
    pub(super) version: Option<Version>,
    /// When it was stored, and the time since its load then.
    pub(super) stored: Instant,
    age: Duration,
    pub(super) weight: u64,
    extra: Option<Arc<Extra>>,
}

/// What only some entries have.
pub(super) struct Extra {
    /// The counters of its tags.
    pub(super) tags: Box<[Slot]>,
    /// Where expiry slides: for how long nobody may ask, and when somebody last did. Behind the pointer that all copies share, so
    /// a hit writes the time in place and can bring back nothing that was removed meanwhile.
    idle: Option<(Duration, AtomicU64)>,
}

/// What is known about a value that is to be stored.
pub(super) struct Birth {
    pub(super) born: u64,
    pub(super) ttl: Duration,
    /// How long the local tier keeps it at most, where a remote tier keeps it longer.
    pub(super) local: Option<Duration>,
    /// How old it is already.
    pub(super) age: Duration,
    pub(super) took: Duration,
    pub(super) version: Option<Version>,
    pub(super) tags: Box<[Slot]>,
    pub(super) weight: u64,
}

/// What an entry is worth at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worth {
    Fresh,
    /// Fresh, and to be refreshed.
    Due,
    /// Expired, but it may be served, and the source is not to be asked yet.
    Throttled,
    /// Expired; it may be served if the source fails.
    Expired,
    /// Too old for anything.
    Nothing,
}

impl<V> Entry<V> {
    pub(super) fn new(
        value: Option<V>,
        birth: Birth,
        config: &CacheAsideConfig,
        now: Instant,
        entropy: &Entropy,
    ) -> Self {
        let Birth { born, ttl, local, age, took, version, tags, weight } = birth;
        let ends = ttl.saturating_sub(age);
        let ends = local.map_or(ends, |local| local.min(ends));
        // Jitter is a share of what the whole time to live is jittered by: what lives shorter is spread less.
        let jitter = if ends < config.ttl { scaled(config.jitter, share(ends, config.ttl)) } else { config.jitter };
        let never = Instant::from_nanos(0);
        let fresh_until = now + jittered(ends, jitter, entropy);
        let stale_until = match config.stale {
            Some(stale) if value.is_some() => (now + stale.max_age.saturating_sub(age)).max(fresh_until),
            // Not even while its time to live lasts: it may have slid out, or be from before a gap in the notices.
            _ => never,
        };
        let refresh_at = match config.refresh_ahead {
            Some(share) if value.is_some() => now + scaled(ttl, share).saturating_sub(age),
            _ => Instant::FAR_FUTURE,
        };
        let took = if config.xfetch.is_some() && value.is_some() { took } else { Duration::ZERO };
        let idle = config.sliding.map(|idle| (idle, AtomicU64::new(now.as_nanos())));
        let extra = (idle.is_some() || !tags.is_empty()).then(|| Arc::new(Extra { tags, idle }));
        let mut plain_until = never;
        if value.is_some() && extra.is_none() {
            let chance = config.xfetch.map_or(Duration::ZERO, |beta| xfetch_horizon(took, beta));
            plain_until = fresh_until.min(refresh_at).min(fresh_until.saturating_sub(chance));
        }
        let (stored, retry_at) = (now, never);
        Self {
            hot: Hot { value, plain_until, born },
            rest: Rest { fresh_until, stale_until, refresh_at, retry_at, took, version, stored, age, weight, extra },
        }
    }

    /// What it is worth now. `above_floor` is whether no notice of its invalidation can have been missed; invalidated tags are the caller's to
    /// look at.
    pub(super) fn worth(&self, now: Instant, above_floor: bool, xfetch: Option<f64>, entropy: &Entropy) -> Worth {
        if above_floor && now < self.rest.fresh_until && !self.is_idle(now) {
            let by_chance = xfetch.is_some_and(|beta| {
                !self.rest.took.is_zero()
                    && xfetch_refreshes(self.rest.took, beta, 1.0 - entropy.unit(), self.rest.fresh_until - now)
            });
            return if now >= self.rest.refresh_at || by_chance { Worth::Due } else { Worth::Fresh };
        }
        match (now < self.rest.stale_until, now < self.rest.retry_at) {
            (true, true) => Worth::Throttled,
            (true, false) => Worth::Expired,
            (false, _) => Worth::Nothing,
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        let idle = self.rest.extra.as_ref().and_then(|extra| extra.idle.as_ref());
        idle.is_some_and(|(limit, asked)| now - Instant::from_nanos(asked.load(Relaxed)) >= *limit)
    }

    /// The time since its load.
    pub(super) fn age(&self, now: Instant) -> Duration {
        self.rest.age.saturating_add(now - self.rest.stored)
    }

    /// Somebody asked for it.
    pub(super) fn touch(&self, now: Instant) {
        if let Some((_, asked)) = self.rest.extra.as_ref().and_then(|extra| extra.idle.as_ref()) {
            asked.fetch_max(now.as_nanos(), Relaxed);
        }
    }

    pub(super) fn tags(&self) -> &[Slot] {
        self.rest.extra.as_ref().map_or(&[], |extra| &extra.tags)
    }

    /// Whether it is the same one, perhaps marked since.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        (self.hot.born, self.rest.fresh_until, self.rest.stale_until)
            == (other.hot.born, other.rest.fresh_until, other.rest.stale_until)
    }

    /// A refresh of it was begun: none will be begun again.
    pub(super) fn refreshing(mut self) -> Self {
        self.rest.refresh_at = Instant::FAR_FUTURE;
        self.rest.took = Duration::ZERO;
        if self.hot.plain_until > Instant::from_nanos(0) {
            self.hot.plain_until = self.rest.fresh_until;
        }
        self
    }

    /// Whether a refresh could yet be begun.
    pub(super) fn is_refreshable(&self) -> bool {
        self.rest.refresh_at < Instant::FAR_FUTURE || !self.rest.took.is_zero()
    }

    /// A load in its place failed: the source is left alone until then.
    pub(super) fn throttled(mut self, until: Instant) -> Self {
        self.rest.retry_at = until;
        self
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64()
}

/// In `[ttl, ttl + jitter]`, evenly.
pub(super) fn jittered(ttl: Duration, jitter: Duration, entropy: &Entropy) -> Duration {
    let nanos = nanos(jitter);
    if nanos == 0 { ttl } else { ttl.saturating_add(Duration::from_nanos(entropy.up_to(nanos))) }
}

/// Whether a hit is to refresh a value that expires in `left` and took `took` to load; `u` is drawn from `(0, 1]`.
///
/// (Vattani, Chierichetti, Lowenstein, "Optimal probabilistic cache stampede prevention", VLDB 2015.)
pub(super) fn xfetch_refreshes(took: Duration, beta: f64, u: f64, left: Duration) -> bool {
    -took.as_secs_f64() * beta * u.ln() >= left.as_secs_f64()
}

/// How long before its expiry a value cannot be refreshed by chance yet: `u` is a multiple of 2^-53, so `-ln u` is 36.8 at most.
fn xfetch_horizon(took: Duration, beta: f64) -> Duration {
    scaled(took, beta * 36.8)
}
