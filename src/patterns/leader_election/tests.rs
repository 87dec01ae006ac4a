//! The state machine of a term, compared with a naive model that keeps every call.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use proptest::prelude::*;

use super::{LeaderElectionConfig, term::Term, term_times::TermTimes};
use crate::{
    config::Name,
    port::FencingToken,
    time::{Clock, Instant},
};

const START: Instant = Instant::from_nanos(1_000_000_000);

/// An event in a holder's life.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The holder works or is paused for this many milliseconds.
    Passes(u64),
    /// A renewal, if one may begin, is answered after this many milliseconds.
    Renewed(u64),
    /// The reply to an earlier call arrives this many milliseconds after that call began.
    OutOfTurn(u64),
    /// A renewal fails and is to be retried after this many milliseconds.
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
    fn a_term_counts_from_the_latest_answered_call_only(
        config in config(),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        prop_assume!(config.check().is_ok());
        let ms = Duration::from_millis;
        // Computed in another way than by the state machine.
        let usable = config.term.as_secs_f64() * (1.0 - config.clock_drift) - config.margin.as_secs_f64();
        let mut now = START;
        let mut answered = vec![now];
        let mut count = TermTimes::granted(&config, now, now).unwrap();
        for step in steps {
            match step {
                Step::Passes(d) => now = now + ms(d),
                Step::Renewed(d) => {
                    let (began, budget) = (now, count.budget(&config, now));
                    let warning = count.warning(&config);
                    prop_assert_eq!(budget.is_some(), began < warning, "no renewal begins after the warning");
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
fn a_grant_that_arrives_after_the_warning_is_not_used() {
    let config = LeaderElectionConfig::default();
    let last = START + Duration::from_nanos(12_984_999_999);
    assert!(TermTimes::granted(&config, START, last).is_some());
    assert!(TermTimes::granted(&config, START, last + Duration::from_nanos(1)).is_none());
}

#[test]
fn a_term_that_has_ended_is_not_revived_by_a_renewal_that_is_counted_late() {
    let (clock, time) = Clock::manual();
    let config = LeaderElectionConfig::default();
    let mut count = TermTimes::granted(&config, clock.now(), clock.now()).unwrap();
    let term = Term::new(&Name::from("job"), FencingToken::new(1), &clock, &config, count);
    assert!(term.is_leader());
    term.end();
    time.advance(Duration::from_secs(1));
    count.renewed(&config, clock.now());
    term.counted(&config, count);
    assert!(!term.is_leader() && term.is_ending());
    time.block_on(term.lost());
}
