//! The machine of a term, beside a naive model that keeps every call.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use proptest::prelude::*;

use super::{LeaderElectionConfig, state::Count, term::Term};
use crate::{
    config::Name,
    port::FencingToken,
    time::{Clock, Instant},
};

const START: Instant = Instant::from_nanos(1_000_000_000);

/// What happens to a holder.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// It is paused, or works.
    Passes(u64),
    /// A renewal is answered so long after it began, if it may begin at all.
    Renewed(u64),
    /// A reply of an earlier call comes so long after that call began.
    OutOfTurn(u64),
    /// A renewal fails, and is to be tried again after so long.
    Failed(u64),
    Hurry,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..9000_u64).prop_map(Step::Passes),
        (0..20_000_u64).prop_map(Step::Renewed),
        (0..20_000_u64).prop_map(Step::OutOfTurn),
        (0..3000_u64).prop_map(Step::Failed),
        Just(Step::Hurry),
    ]
}

fn config() -> impl Strategy<Value = LeaderElectionConfig> {
    (1_u64..100_000, 0.0..0.4_f64, 0_u64..3, 0_u64..3).prop_map(|(term, drift, grace, margin)| {
        let part = Duration::from_millis(term) / 20;
        let config = LeaderElectionConfig::of_term(Duration::from_millis(term)).clock_drift(drift);
        config.grace(part * grace as u32).margin(part * margin as u32)
    })
}

proptest! {
    #[test]
    fn a_holder_counts_from_the_latest_call_that_was_answered_and_from_nothing_else(
        config in config(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        prop_assume!(config.check().is_ok());
        let ms = Duration::from_millis;
        // In whole nanoseconds, and by another way than the machine's.
        let usable = config.term.as_secs_f64() * (1.0 - config.clock_drift) - config.margin.as_secs_f64();
        let mut now = START;
        let mut answered = vec![now];
        let mut count = Count::granted(&config, now, now).unwrap();
        for step in steps {
            match step {
                Step::Passes(d) => now = now + ms(d),
                Step::Renewed(d) => {
                    let (began, budget) = (now, count.budget(&config, now));
                    let warning = count.warning(&config);
                    prop_assert_eq!(budget.is_some(), began < warning, "none begins when it is too late");
                    if let Some(budget) = budget {
                        prop_assert!(budget <= config.call_timeout && began + budget <= warning);
                        now = now + ms(d);
                        answered.push(began);
                        count.renewed(&config, began);
                        prop_assert_eq!(count.next_renewal(), began + config.renew_every);
                    }
                }
                Step::OutOfTurn(d) => {
                    let began = now.saturating_sub(ms(d)).max(START);
                    answered.push(began);
                    count.renewed(&config, began);
                }
                Step::Failed(d) => {
                    count.failed(now, ms(d));
                    prop_assert_eq!(count.next_renewal(), now + ms(d));
                }
                Step::Hurry => {
                    count.hurry(now);
                    prop_assert!(count.next_renewal() <= now);
                }
            }
            let since = *answered.iter().max().unwrap();
            prop_assert_eq!(count.since(), since);
            let lasts = (count.deadline(&config) - since).as_secs_f64();
            prop_assert!((lasts - usable).abs() < 1e-6, "{} {}", lasts, usable);
            prop_assert_eq!(count.deadline(&config) - count.warning(&config), config.grace);
        }
    }
}

// Guarantee: leader_election 2.
#[test]
fn a_grant_is_of_no_use_from_the_moment_on_at_which_work_would_be_told_to_end() {
    let config = LeaderElectionConfig::default();
    let last = START + Duration::from_nanos(12_984_999_999);
    assert!(Count::granted(&config, START, last).is_some());
    assert!(Count::granted(&config, START, last + Duration::from_nanos(1)).is_none());
}

#[test]
fn a_term_that_has_ended_is_not_revived_by_a_renewal_that_is_counted_late() {
    let (clock, hand) = Clock::manual();
    let config = LeaderElectionConfig::default();
    let mut count = Count::granted(&config, clock.now(), clock.now()).unwrap();
    let term = Term::new(&Name::from("job"), FencingToken::new(1), &clock, &config, count);
    assert!(term.is_leader());
    term.end();
    hand.advance(Duration::from_secs(1));
    count.renewed(&config, clock.now());
    term.counted(&config, count);
    assert!(!term.is_leader() && term.is_ending());
    hand.block_on(term.lost());
}
