//! Pure parts: the freshness of an entry, early refreshes, the record format, pending
//! invalidations.
use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    CacheAsideConfig, StaleConfig,
    loaded::ValueSettings,
    local::entry::{Birth, Entry, Freshness},
    local::table::Local,
    refresh::xfetch_refreshes,
    remote::health::{Failed, Health},
    remote::pending::{Invalidation, PendingInvalidations, Steps},
    remote::record::{Kind, ReadError, Stored, mark, number},
    validator::Validator,
};
use crate::{
    entropy::Entropy,
    time::{Instant, Timestamp},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

// Guarantee: cache_aside 8.
/// Over a million seeded draws the rate is that of the paper.
#[test]
fn early_refreshes_have_the_rate_of_the_paper() {
    let entropy = Entropy::from_seed(8);
    for (left, rate) in [(0.1, 0.9048), (0.5, 0.6065), (1.0, 0.3679), (2.0, 0.1353)] {
        let (took, beta) = (MS(200), 1.5);
        let left = took.mul_f64(beta * left);
        let fires = (0..1_000_000).filter(|_| xfetch_refreshes(took, beta, 1.0 - entropy.unit(), left)).count();
        let measured = fires as f64 / 1e6;
        // Five standard deviations, at most.
        assert!((measured - rate).abs() < 0.0025, "{measured}, not {rate}");
    }
}

/// The freshness of an entry by a naive model.
fn naive(config: &CacheAsideConfig, birth: &Birth<'_>, asked: u64, failed: Option<u64>, now: u64) -> Option<Freshness> {
    let (now, asked, failed) = (MS(now), MS(asked), failed.map(MS));
    let left = birth.ttl.saturating_sub(birth.age);
    let fresh_for = birth.local.map_or(left, |local| local.min(left));
    let idle = config.sliding.is_some_and(|idle| now.saturating_sub(asked) >= idle);
    if now < fresh_for && !idle {
        let due = config.refresh_ahead.is_some_and(|share| now + birth.age >= birth.ttl.mul_f64(share));
        return Some(if due { Freshness::Due } else { Freshness::Fresh });
    }
    let servable = match config.stale {
        Some(stale) => now < stale.max_age.saturating_sub(birth.age).max(fresh_for),
        None => false,
    };
    let throttled = failed.zip(config.stale).is_some_and(|(failed, stale)| now < failed + stale.throttle);
    match (servable, throttled) {
        (true, true) => Some(Freshness::Throttled),
        (true, false) => Some(Freshness::Expired),
        (false, _) => None,
    }
}

proptest! {
    /// All in whole milliseconds, counted from the entry's birth. The table returns each entry as
    /// it was stored, plain or not.
    #[test]
    fn the_freshness_of_an_entry_is_that_of_the_naive_model(
        ttl in 1_u64..2000, age in 0_u64..1000, local in prop::option::of(1_u64..1000),
        sliding in prop::option::of(1_u64..500), stale in prop::option::of((1_u64..5000, 1_u64..500)),
        refresh in prop::option::of(1_u64..100),
        steps in prop::collection::vec((0_u64..700, any::<bool>(), any::<bool>()), 1..12),
    ) {
        let mut config = CacheAsideConfig::default().ttl(MS(ttl)).jitter(Duration::ZERO);
        config.sliding = sliding.map(MS);
        if let Some((max_age, throttle)) = stale {
            config = config.stale(StaleConfig::new(MS(ttl + max_age)).throttle(MS(throttle)));
        }
        config.refresh_ahead = refresh.map(|percent| percent as f64 / 100.0);
        let birth = || Birth {
            born: 0, ttl: MS(ttl), local: local.map(MS), age: MS(age), took: Duration::ZERO, version: None,
            tags: Box::default(), names: &[], settings: ValueSettings::NONE, weight: 1,
        };
        let start = Instant::from_nanos(1 << 50);
        let entropy = Entropy::from_seed(1);
        let mut entry = Entry::new(Some(()), birth(), &config, start, &entropy);
        let (mut now, mut asked, mut failed) = (0, 0, None);
        let table: Local<u8, ()> = Local::of_entries(8);
        for (wait, asks, fails) in steps {
            now += wait;
            drop(table.insert(1, &1, entry));
            entry = table.peek(&1).unwrap();
            let freshness = entry.freshness(start + MS(now), true, None, &entropy);
            prop_assert_eq!(freshness, naive(&config, &birth(), asked, failed, now));
            let plain = start + MS(now) < entry.hot.plain_until;
            prop_assert!(!plain || freshness == Some(Freshness::Fresh), "a plain hit is fresh");
            if asks && matches!(freshness, Some(Freshness::Fresh | Freshness::Due)) {
                entry.touch(start + MS(now));
                asked = now;
            }
            if fails && let Some(stale) = config.stale {
                entry = entry.throttled(start + MS(now) + stale.throttle);
                failed = Some(now);
            }
        }
        let late = entry.freshness(start + MS(now), false, None, &entropy);
        prop_assert!(!matches!(late, Some(Freshness::Fresh | Freshness::Due)), "an entry below the floor is not fresh");
    }

    #[test]
    fn a_record_reads_as_it_was_written(
        kind in prop_oneof![Just(Kind::Value), Just(Kind::Absent), any::<u64>().prop_map(Kind::Claim)],
        ttl in any::<u64>(), born in any::<u64>(), loaded in any::<u64>(), tags in prop::collection::vec(any::<String>(), 0..4),
        validator in prop::option::of(prop::option::of(any::<String>())), stale in prop::option::of(any::<u64>()),
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let validator = validator.map(|etag| Validator { last_modified: etag.clone().map(|etag| etag + "\n"), etag });
        let stale_max_age = stale.map(Duration::from_nanos);
        let loaded = Timestamp::from_millis(loaded);
        let (ttl, payload) = (Duration::from_nanos(ttl), payload.into());
        let stored = Stored { kind, ttl, born, loaded, tags, validator, stale_max_age, payload };
        let bytes = stored.encode();
        prop_assert_eq!(Stored::decode(&bytes), Ok(stored));
        for end in 0..bytes.len() {
            prop_assert!(Stored::decode(&bytes.slice(..end)).is_err(), "cut off after {} bytes", end);
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Stored::decode(&damaged.into()).is_err(), "with bit {} flipped", bit);
        }
    }

    #[test]
    fn random_bytes_are_not_a_record(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(Stored::decode(&Bytes::from(bytes)), Err(ReadError::Form));
    }

    #[test]
    fn a_damaged_tag_mark_has_no_number(of in any::<u64>()) {
        let bytes = mark(of);
        prop_assert_eq!(number(&bytes), Some(of));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(number(&damaged), None);
        }
    }

    /// The naive model keeps, for each target, the pending steps and the deliveries that began
    /// after it was last added.
    #[test]
    fn each_step_is_delivered_once_by_a_delivery_that_began_after_it_was_added(
        steps in prop::collection::vec((0_usize..4, 0_usize..5), 0..60),
    ) {
        let kinds = [Invalidation::All, Invalidation::Tag("t".into()), Invalidation::Row("a".into()), Invalidation::Row("b".into())];
        let pending = PendingInvalidations::default();
        let mut expected: BTreeMap<Invalidation, Steps> = BTreeMap::new();
        let mut under_way: BTreeMap<Invalidation, (super::remote::pending::Delivery<'_>, bool)> = BTreeMap::new();
        for (kind, what) in steps {
            let target = &kinds[kind];
            match what {
                0 | 1 => {
                    let steps = if what == 0 { BOTH } else { Steps::NOTICE };
                    pending.add(target.clone(), steps, None);
                    // A pending one of everything whose delivery has not begun covers keys and tags, too.
                    let all = expected.get(&Invalidation::All).filter(|_| *target != Invalidation::All && !under_way.contains_key(&Invalidation::All));
                    if !all.is_some_and(|all| all.store || !steps.store) {
                        let old = expected.entry(target.clone()).or_default();
                        *old = Steps { store: old.store || steps.store, notice: true };
                        if let Some(delivery) = under_way.get_mut(target) {
                            delivery.1 = false;
                        }
                    }
                }
                2 => {
                    let begun = pending.begin(target.clone(), None);
                    prop_assert_eq!(begun.is_some(), expected.contains_key(target) && !under_way.contains_key(target));
                    if let Some(delivery) = begun {
                        prop_assert_eq!(delivery.steps, expected[target]);
                        under_way.insert(target.clone(), (delivery, true));
                    }
                }
                3 => if let Some((mut delivery, counts)) = under_way.remove(target) {
                    delivery.delivered(Steps::STORE);
                    if counts {
                        let steps = expected[target];
                        expected.insert(target.clone(), Steps { store: false, ..steps });
                        if !steps.notice {
                            expected.remove(target);
                        }
                    }
                },
                _ => if let Some((mut delivery, counts)) = under_way.remove(target) {
                    delivery.delivered(BOTH);
                    if counts {
                        expected.remove(target);
                    }
                },
            }
            prop_assert_eq!(pending.all(), expected.keys().cloned().collect::<Vec<_>>());
            for row in ["a", "b"] {
                let blocking = [Invalidation::All, Invalidation::Row(row.into())].into_iter().find(|target| expected.get(target).is_some_and(|o| o.store));
                prop_assert_eq!(pending.blocking(row), blocking);
            }
            let tag = pending.blocking_tag(&["s".into(), "t".into()]).is_some();
            prop_assert_eq!(tag, expected.get(&kinds[1]).is_some_and(|expected| expected.store));
        }
    }
}

const BOTH: Steps = Steps { store: true, notice: true };

#[test]
fn too_many_invalidations_become_one_with_the_steps_of_all() {
    for steps in [BOTH, Steps::NOTICE] {
        let pending = PendingInvalidations::default();
        for i in 0..10_001 {
            pending.add(Invalidation::Row(i.to_string()), steps, None);
        }
        assert_eq!(pending.all(), [Invalidation::All]);
        assert_eq!(pending.blocking("any").is_some(), steps.store);
        // It also covers those that are added before its delivery begins.
        pending.add(Invalidation::Row("a".into()), steps, None);
        assert_eq!(pending.len(), 1);
        let delivery = pending.begin(Invalidation::All, None).unwrap();
        pending.add(Invalidation::Row("a".into()), steps, None);
        assert_eq!(pending.len(), 2);
        drop(delivery);
    }
}

#[test]
fn a_clear_that_began_before_a_key_was_added_does_not_deliver_it() {
    let pending = PendingInvalidations::default();
    pending.add(Invalidation::All, BOTH, None);
    let began = pending.stamp();
    pending.add(Invalidation::Row("a".into()), BOTH, None);
    assert!(!pending.delivered(&Invalidation::All, began, BOTH));
    assert!(pending.blocking("a").is_some());
    assert!(pending.delivered(&Invalidation::All, pending.stamp(), BOTH));
    assert!(pending.blocking("a").is_none());
}

#[test]
fn pending_releases_of_claims_never_become_an_invalidation_of_everything() {
    let pending = PendingInvalidations::default();
    for i in 0..20_000 {
        pending.add(Invalidation::Claim(i.to_string(), crate::store::Version::new(i)), Steps::STORE, None);
    }
    assert!(pending.len() <= 1000 && pending.blocking("1").is_none());
}

#[test]
fn a_tier_is_suspended_by_its_failure_rate_and_probed_by_one_caller_at_a_time() {
    let at = |ms: u64| Instant::from_nanos(1 << 50) + MS(ms);
    let rest = MS(1000);
    // One slow answer in a thousand never suspends the tier, even if the first is slow.
    let health = Health::new(rest);
    for i in 0..100_000 {
        if i % 1000 == 0 {
            health.failed(at(i), at(i), Failed::Slow)
        } else {
            health.answered(at(i))
        }
        assert!(health.admits(at(i)), "after request {i}");
    }
    // The tier goes down after a long time without failures: only three callers wait for it.
    for i in 0..3 {
        assert!(health.admits(at(100_000 + i)));
        health.failed(at(100_000 + i), at(100_000 + i), Failed::Slow);
    }
    assert!(!health.admits(at(100_003)) && !health.admits(at(101_001)));
    // After the cool-down one caller probes. If it is dropped without an answer, another follows.
    assert!(health.admits(at(101_002)) && !health.admits(at(101_002)));
    assert!(!health.admits(at(102_001)) && health.admits(at(102_002)));
    health.answered(at(102_003));
    assert!(health.admits(at(102_003)) && health.admits(at(102_003)));
    // Half of the answers in the window are slow.
    let health = Health::new(rest);
    for i in 0..4 {
        health.answered(at(i));
        health.failed(at(i), at(i), Failed::Slow);
    }
    assert!(!health.admits(at(4)));
    // An error as the first answer.
    let health = Health::new(rest);
    health.failed(at(0), at(0), Failed::Refused);
    assert!(!health.admits(at(1)));
}

/// Both releases read it, so a release that knows no validators can run beside this one.
#[test]
fn a_record_without_a_validator_has_the_bytes_of_the_releases_before_validators() {
    let written = "value\nttl 5\nborn 7\nloaded 9\ntag 3\na\nb\n\npayload";
    let stored = Stored {
        kind: Kind::Value,
        ttl: Duration::from_nanos(5),
        born: 7,
        loaded: Timestamp::from_millis(9),
        tags: vec!["a\nb".to_owned()],
        validator: None,
        stale_max_age: None,
        payload: "payload".into(),
    };
    let bytes = stored.encode();
    assert_eq!(std::str::from_utf8(&bytes[8 + 17..]).unwrap_or("?"), written);
    assert_eq!(Stored::decode(&bytes), Ok(stored));
}
