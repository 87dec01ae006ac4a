//! Reports of processes, and the openings that they cause: the pure part.
//!
//! A report carries a duration and no time of day, because clocks may differ. Its reader bounds its
//! age by the interval at which it is renewed.
use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use crate::{
    port::{PortError, PortErrorKind},
    time::Instant,
};

/// Report of one process that its breaker is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) process: String,
    /// Identifier of the opening, over all lives of the process.
    pub(super) opening: String,
    /// Remaining open time.
    pub(super) left: Duration,
}

impl Report {
    pub(super) fn encode(opening: &str, left: Duration) -> Bytes {
        format!("circuit 1 open {opening} {}", left.as_millis()).into()
    }

    pub(super) fn decode(process: &str, value: &[u8]) -> Result<Self, PortError> {
        let corrupt = || PortError::new(PortErrorKind::Corrupt, "the report of a circuit breaker is malformed");
        let text = std::str::from_utf8(value).map_err(|_| corrupt())?;
        let rest = text.strip_prefix("circuit ").ok_or_else(corrupt)?;
        let Some(rest) = rest.strip_prefix("1 open ") else {
            return Err(PortError::new(
                PortErrorKind::TooNew,
                "the report of a circuit breaker has the format of a newer release",
            ));
        };
        let (opening, left) = rest.split_once(' ').ok_or_else(corrupt)?;
        let left = Duration::from_millis(left.parse().map_err(|_| corrupt())?);
        Ok(Self { process: process.to_owned(), opening: opening.to_owned(), left })
    }
}

/// Openings of others that were counted, by process, and the end of each. Each opens this breaker
/// once, so that a manual close holds.
#[derive(Debug, Default)]
pub(super) struct Followed(HashMap<String, (String, Instant)>);

impl Followed {
    /// Returns the duration for which to open, if at least `votes` others are open and one of their
    /// openings was not counted before: the time for which that many stay open.
    pub(super) fn opens(&mut self, reports: &[Report], votes: usize, now: Instant) -> Option<Duration> {
        self.0.retain(|_, (_, until)| *until > now);
        if votes == 0 || reports.len() < votes {
            return None;
        }
        let mut is_new = false;
        for Report { process, opening, left } in reports {
            let before = self.0.insert(process.clone(), (opening.clone(), now + *left));
            is_new |= before.is_none_or(|(before, _)| before != *opening);
        }
        is_new.then(|| stands(reports, votes)).flatten()
    }
}

/// Returns the duration for which at least `votes` of these reports stand; `None` if there are
/// fewer.
pub(super) fn stands(reports: &[Report], votes: usize) -> Option<Duration> {
    let mut left: Vec<Duration> = reports.iter().map(|report| report.left).collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    left.get(votes.checked_sub(1)?).copied()
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_report_is_read_as_it_was_written_and_malformed_ones_are_refused() {
        let left = Duration::from_millis(1500);
        let report = Report::decode("a", &Report::encode("7f-3", left)).unwrap();
        assert_eq!(report, Report { process: "a".into(), opening: "7f-3".into(), left });
        assert_eq!(Report::decode("a", b"circuit 2 open 7f-3 1").unwrap_err().kind(), PortErrorKind::TooNew);
        for bad in ["", "circuit 1 open", "circuit 1 open x", "circuit 1 open x -1", "rate 1 1 1", "circuit 1 open x y"]
        {
            assert!(Report::decode("a", bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        /// Against a list of all openings that were ever counted.
        #[test]
        fn each_new_opening_among_enough_reports_opens_once(
            votes in 1usize..4,
            looks in prop::collection::vec((0u64..500, prop::collection::vec((0u8..5, 0u8..4, 1u64..3000), 0..5)), 1..40),
        ) {
            let (mut followed, mut counted) = (Followed::default(), Vec::<(String, String, Instant)>::new());
            let mut now = Instant::from_nanos(0);
            for (passes, reports) in looks {
                now = now + Duration::from_millis(passes);
                let mut reports: Vec<_> = reports.into_iter().map(|(process, opening, left)| Report {
                    process: process.to_string(), opening: opening.to_string(), left: Duration::from_millis(left),
                }).collect();
                reports.sort_by(|a, b| a.process.cmp(&b.process));
                reports.dedup_by(|a, b| a.process == b.process);
                let last = |counted: &[(String, String, Instant)], process: &str| {
                    counted.iter().rev().find(|(p, _, until)| p == process && *until > now).map(|(_, o, _)| o.clone())
                };
                let is_new = reports.iter().any(|r| last(&counted, &r.process).as_ref() != Some(&r.opening));
                let expected = (reports.len() >= votes && is_new).then(|| {
                    // The longest time for which at least `votes` are open.
                    let enough = |d: Duration| reports.iter().filter(|r| r.left >= d).count() >= votes;
                    reports.iter().map(|r| r.left).filter(|d| enough(*d)).max().unwrap()
                });
                prop_assert_eq!(followed.opens(&reports, votes, now), expected);
                if reports.len() >= votes {
                    for r in &reports {
                        counted.retain(|(p, _, _)| *p != r.process);
                        counted.push((r.process.clone(), r.opening.clone(), now + r.left));
                    }
                }
            }
        }
    }
}
