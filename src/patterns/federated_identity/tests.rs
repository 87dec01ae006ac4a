//! The machine of an issuer's keys against a naive model.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use proptest::prelude::*;

use super::{
    TokenVerifierConfig,
    state::{KeyCache, Lookup},
};
use crate::{
    time::Clock,
    token::{Algorithm, TokenReason, jwk::KeySet},
};

/// Keys by number: the coordinates of points of P-256, whose private halves nobody needs.
const POINTS: [(&str, &str); 2] = [
    ("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"),
    ("MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"),
];

fn set(keys: &[usize]) -> KeySet {
    let key = |n: &usize| {
        let (x, y) = POINTS[*n];
        format!(r#"{{"kty":"EC","crv":"P-256","kid":"{n}","x":"{x}","y":"{y}"}}"#)
    };
    let keys: Vec<_> = keys.iter().map(key).collect();
    KeySet::read(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes(), 9).unwrap()
}

/// Seconds since the start at which something was, and the numbers of the keys since then.
#[derive(Debug, Default)]
struct Model {
    attempts: Vec<u64>,
    fetched: Option<(u64, Vec<usize>)>,
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Ask(usize),
    /// For a key without an id, and for one of another algorithm.
    AskWithoutId,
    AskOther(usize),
    /// A fetch that is allowed brings these keys, or fails.
    Fetch(Option<Vec<usize>>),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = prop_oneof![Just(vec![0]), Just(vec![1]), Just(vec![0, 1])];
    prop_oneof![
        3 => (0u64..40).prop_map(Step::Pass),
        1 => (400u64..3700).prop_map(Step::Pass),
        4 => (0usize..2).prop_map(Step::Ask),
        1 => Just(Step::AskWithoutId),
        1 => (0usize..2).prop_map(Step::AskOther),
        3 => proptest::option::weighted(0.7, keys).prop_map(Step::Fetch),
    ]
}

proptest! {
    #[test]
    fn the_keys_of_an_issuer_are_those_of_a_naive_model(steps in proptest::collection::vec(step(), 1..60)) {
        let (clock, _) = Clock::manual();
        let (start, config) = (clock.now(), TokenVerifierConfig::default());
        let (mut cache, mut model, mut now) = (KeyCache::default(), Model::default(), 0);
        for step in steps {
            let at = start + Duration::from_secs(now);
            let may_fetch = model.attempts.last().is_none_or(|last| now - last >= 30);
            let fresh = model.fetched.as_ref().filter(|(fetched, _)| now - fetched < 3600);
            let serves_for = model.fetched.as_ref().map_or(0, |(fetched, _)| 3600u64.saturating_sub(now - fetched));
            prop_assert_eq!(cache.serves_for(at, &config), Duration::from_secs(serves_for));
            let last_brought_them = model.fetched.as_ref().map(|(fetched, _)| fetched) == model.attempts.last();
            prop_assert_eq!(cache.is_current(), last_brought_them && model.fetched.is_some());
            match step {
                Step::Pass(seconds) => now += seconds,
                Step::AskWithoutId => match (cache.lookup(at, None, Algorithm::Es256, &config), fresh) {
                    (Lookup::Stale, None) => {}
                    (Lookup::Unknown, Some((_, keys))) => prop_assert_eq!(keys.len(), 2),
                    (Lookup::Found { .. }, Some((_, keys))) => prop_assert_eq!(keys.len(), 1),
                    (answer, fresh) => prop_assert!(false, "{:?} {:?}", answer, fresh),
                },
                Step::AskOther(n) => match (cache.lookup(at, Some(&n.to_string()), Algorithm::Es384, &config), fresh) {
                    (Lookup::Stale, None) => {}
                    (Lookup::Unknown, Some((_, keys))) => prop_assert!(!keys.contains(&n)),
                    (Lookup::Refused(TokenReason::Algorithm), Some((_, keys))) => prop_assert!(keys.contains(&n)),
                    (answer, fresh) => prop_assert!(false, "{:?} {:?}", answer, fresh),
                },
                Step::Ask(n) => {
                    let answer = cache.lookup(at, Some(&n.to_string()), Algorithm::Es256, &config);
                    match (answer, fresh) {
                        (Lookup::Stale, None) => {}
                        (Lookup::Unknown, Some((_, keys))) => prop_assert!(!keys.contains(&n)),
                        (Lookup::Found { refresh, .. }, Some((fetched, keys))) => {
                            prop_assert!(keys.contains(&n));
                            prop_assert_eq!(refresh, now - fetched >= 480 && may_fetch);
                        }
                        (answer, fresh) => prop_assert!(false, "{:?} {:?}", answer, fresh),
                    }
                }
                Step::Fetch(keys) => {
                    let begun = cache.begin(at, config.cooldown);
                    prop_assert_eq!(begun.is_ok(), may_fetch);
                    if may_fetch {
                        model.attempts.push(now);
                        if let Some(keys) = keys {
                            cache.replace(set(&keys), at);
                            model.fetched = Some((now, keys));
                        }
                    } else {
                        let last = model.attempts.last().unwrap();
                        prop_assert_eq!(begun.unwrap_err(), Duration::from_secs(last + 30 - now));
                    }
                }
            }
        }
    }
}
