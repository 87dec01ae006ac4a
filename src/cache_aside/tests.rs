//! The pure parts: what an entry is worth, early refreshes, the record's form, the debts.
use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    CacheAsideConfig,
    debts::{Debt, Debts},
    entry::{Birth, Entry, Worth, xfetch_refreshes},
    wire::{Kind, Stored},
};
use crate::{entropy::Entropy, time::Instant};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Cache-aside 8: over a million seeded draws the rate is that of the paper.
#[test]
fn cache_8_a_million_draws_have_the_rate_of_the_paper() {
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

/// What an entry is worth, said naively.
fn naive(config: &CacheAsideConfig, birth: &Birth, asked: u64, failed: Option<u64>, now: u64) -> Worth {
    let (now, asked, failed) = (MS(now), MS(asked), failed.map(MS));
    let left = birth.ttl.saturating_sub(birth.age);
    let fresh_for = birth.local.map_or(left, |local| local.min(left));
    let idle = config.sliding.is_some_and(|idle| now.saturating_sub(asked) >= idle);
    if now < fresh_for && !idle {
        let due = config.refresh_ahead.is_some_and(|share| now + birth.age >= birth.ttl.mul_f64(share));
        return if due { Worth::Due } else { Worth::Fresh };
    }
    let servable = match config.stale {
        Some(stale) => now < stale.max_age.saturating_sub(birth.age).max(fresh_for),
        None => now < fresh_for,
    };
    let throttled = failed.zip(config.stale).is_some_and(|(failed, stale)| now < failed + stale.throttle);
    match (servable, throttled) {
        (true, true) => Worth::Throttled,
        (true, false) => Worth::Expired,
        (false, _) => Worth::Nothing,
    }
}

proptest! {
    /// All in whole milliseconds, counted from the entry's birth.
    #[test]
    fn an_entry_is_worth_what_the_naive_model_says(
        ttl in 1_u64..2000, age in 0_u64..1000, local in prop::option::of(1_u64..1000),
        sliding in prop::option::of(1_u64..500), stale in prop::option::of((1_u64..5000, 1_u64..500)),
        refresh in prop::option::of(1_u64..100),
        steps in prop::collection::vec((0_u64..700, any::<bool>(), any::<bool>()), 1..12),
    ) {
        let mut config = CacheAsideConfig::default().ttl(MS(ttl), Duration::ZERO);
        config.sliding = sliding.map(MS);
        if let Some((max_age, throttle)) = stale {
            config = config.stale(MS(ttl + max_age), MS(throttle));
        }
        config.refresh_ahead = refresh.map(|percent| percent as f64 / 100.0);
        let birth = || Birth {
            born: 0, ttl: MS(ttl), local: local.map(MS), age: MS(age), took: Duration::ZERO, version: None,
            tags: Box::default(), weight: 1,
        };
        let start = Instant::from_nanos(1 << 50);
        let entropy = Entropy::from_seed(1);
        let mut entry = Entry::new(Some(()), birth(), &config, start, &entropy);
        let (mut now, mut asked, mut failed) = (0, 0, None);
        for (wait, asks, fails) in steps {
            now += wait;
            let worth = entry.worth(start + MS(now), true, None, &entropy);
            prop_assert_eq!(worth, naive(&config, &birth(), asked, failed, now));
            let plain = start + MS(now) < entry.hot.plain_until;
            prop_assert!(!plain || worth == Worth::Fresh, "a plain hit is fresh");
            if asks && matches!(worth, Worth::Fresh | Worth::Due) {
                entry.touch(start + MS(now));
                asked = now;
            }
            if fails && let Some(stale) = config.stale {
                entry = entry.throttled(start + MS(now) + stale.throttle);
                failed = Some(now);
            }
        }
        let late = entry.worth(start + MS(now), false, None, &entropy);
        prop_assert!(!matches!(late, Worth::Fresh | Worth::Due), "what is below the floor is not fresh");
    }

    #[test]
    fn a_record_reads_as_it_was_written(
        kind in prop_oneof![Just(Kind::Value), Just(Kind::Absent), any::<u64>().prop_map(Kind::Claim)],
        ttl in any::<u64>(), born in any::<u64>(), tags in prop::collection::vec(any::<String>(), 0..4),
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let stored = Stored { kind, ttl: Duration::from_nanos(ttl), born, tags, payload: payload.into() };
        let bytes = stored.encode();
        prop_assert_eq!(Stored::decode(&bytes), Some(stored));
        for end in 0..bytes.len() {
            let _ = Stored::decode(&bytes.slice(..end)); // whatever it is, no panic
        }
    }

    #[test]
    fn what_is_no_record_is_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(Stored::decode(&Bytes::from(bytes)), None);
    }

    #[test]
    fn debts_are_paid_by_deliveries_that_began_after_they_were_made(
        steps in prop::collection::vec((0_usize..4, 0_usize..5), 0..60),
    ) {
        let kinds = [Debt::All, Debt::Tag("t".into()), Debt::Row("a".into()), Debt::Row("b".into())];
        let debts = Debts::default();
        // The naive model: what is owed, and which deliveries are under way that began after it was last owed.
        let mut owed: BTreeMap<Debt, bool> = BTreeMap::new();
        let mut under_way: BTreeMap<Debt, (u64, bool)> = BTreeMap::new();
        for (kind, what) in steps {
            let debt = &kinds[kind];
            match what {
                0 => {
                    debts.owe(debt.clone());
                    owed.insert(debt.clone(), true);
                    if let Some(delivery) = under_way.get_mut(debt) {
                        delivery.1 = false;
                    }
                }
                1 | 2 => {
                    let row = ["a", "b"][kind % 2];
                    let bar = debts.bars(row);
                    let bars = |debt: &Debt| match debt { Debt::All | Debt::Tag(_) => true, Debt::Row(r) => r == row, Debt::Claim(..) => false };
                    prop_assert_eq!(bar.is_some(), owed.keys().any(bars));
                    if let Some((debt, number)) = bar {
                        prop_assert!(bars(&debt) && owed.contains_key(&debt));
                        under_way.insert(debt, (number, true));
                    }
                }
                _ => if let Some((number, is_enough)) = under_way.remove(debt) {
                    debts.paid(debt, number);
                    if is_enough {
                        owed.remove(debt);
                    }
                }
            }
            prop_assert_eq!(debts.len(), owed.len());
            prop_assert_eq!(debts.first().map(|first| first.0), owed.keys().next().cloned());
        }
    }
}

#[test]
fn too_many_debts_become_one() {
    let debts = Debts::default();
    for i in 0..10_001 {
        debts.owe(Debt::Row(i.to_string()));
    }
    assert_eq!((debts.len(), debts.first().map(|first| first.0)), (1, Some(Debt::All)));
    assert!(debts.bars("any").is_some());
}
