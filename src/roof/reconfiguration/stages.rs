//! The judgement on a stage of a roll-out: a machine that knows neither stores nor time.
use std::{collections::BTreeMap, time::Duration};

use crate::{
    config_store::MemberReport,
    presence::RENEW_EVERY,
    revisions::{Head, Stage, threshold_for},
    time::Instant,
};

/// The whole, in the units of shares.
pub(super) const WHOLE: u64 = 1_000_000;

/// The reason for which a roll-out was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AbortReason {
    /// A member does not take the change: it refuses it, or has quarantined it.
    Rejected,
    /// A member that runs the change is unhealthy.
    Unhealthy,
    /// A member of the stage is gone.
    Vanished,
    /// It was aborted by hand, or by another driver.
    ByHand,
}

impl AbortReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Unhealthy, Self::Vanished, Self::ByHand];

    /// Returns the reason as one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Unhealthy => "unhealthy",
            Self::Vanished => "vanished",
            Self::ByHand => "by_hand",
        }
    }
}

/// The next act of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Wait,
    Advance,
    Abort(String, AbortReason),
}

/// The stage as a driver has seen it. Another driver begins anew.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The members of the stage, by their lives.
    members: BTreeMap<String, u64>,
    /// Time from which on all of them have run the change and were well.
    well_since: Option<Instant>,
    /// Time from which on no member of the stage was there.
    empty_since: Option<Instant>,
    /// `true` if the members could not be seen.
    is_blind: bool,
    /// Time from which on a member that is not there is gone: rows may have expired meanwhile.
    sees_from: Option<Instant>,
}

impl Watched {
    /// Judges the reports of all members. `stage` is that of `head`.
    pub(super) fn judge(
        &mut self,
        (head, stage): (&Head, &Stage),
        reports: &[MemberReport],
        (now, bake): (Instant, Duration),
    ) -> Verdict {
        let of_stage = |report: &&MemberReport| head.number_for(Some(&report.member)) == stage.number;
        for report in reports.iter().filter(of_stage) {
            if report.rejected == Some(stage.number) {
                return Verdict::Abort(report.member.clone(), AbortReason::Rejected);
            }
            if report.number == stage.number && !report.is_fit {
                return Verdict::Abort(report.member.clone(), AbortReason::Unhealthy);
            }
        }
        if std::mem::take(&mut self.is_blind) {
            self.sees_from = Some(now + RENEW_EVERY);
        }
        let is_gone = |member: &&String| !reports.iter().any(|report| report.member == **member);
        if let Some(gone) = self.members.keys().find(is_gone) {
            self.well_since = None;
            let may_be_late = self.sees_from.is_some_and(|from| now < from);
            return if may_be_late { Verdict::Wait } else { Verdict::Abort(gone.clone(), AbortReason::Vanished) };
        }
        let mut is_well = false;
        for report in reports.iter().filter(of_stage) {
            let life = self.members.insert(report.member.clone(), report.life);
            // One that died in between has not stayed well.
            if report.number != stage.number || life.is_some_and(|life| life != report.life) {
                (self.well_since, self.empty_since) = (None, None);
                return Verdict::Wait;
            }
            is_well = true;
        }
        if !is_well {
            // Some were there when it was entered. Each may be down, or cut off for a moment.
            let since = *self.empty_since.get_or_insert(now);
            let is_over = now - since >= bake.max(RENEW_EVERY);
            return if is_over { Verdict::Abort(String::new(), AbortReason::Vanished) } else { Verdict::Wait };
        }
        self.empty_since = None;
        let since = *self.well_since.get_or_insert(now);
        if now - since >= bake { Verdict::Advance } else { Verdict::Wait }
    }

    /// Forgets for how long the stage was well or empty: its members cannot be seen.
    pub(super) fn is_blind(&mut self) {
        (self.well_since, self.empty_since, self.is_blind) = (None, None, true);
    }

    /// Begins another stage.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }
}

/// Returns the stage as it is entered: its threshold lets its share of these members in, and all
/// that were in before. `None` without members: nobody can be seen to try the change.
pub(super) fn enter(stage: &Stage, step: u64, reports: &[MemberReport]) -> Option<Stage> {
    if reports.is_empty() {
        return None;
    }
    let share = usize::try_from(step).ok().and_then(|step| stage.shares.get(step)).copied().unwrap_or(WHOLE);
    let threshold = if share >= WHOLE {
        u64::MAX
    } else {
        let members: Vec<String> = reports.iter().map(|report| report.member.clone()).collect();
        let count = (share as u128 * members.len() as u128).div_ceil(u128::from(WHOLE)) as usize;
        threshold_for(count.max(1), stage.number, &members)
    };
    Some(Stage { threshold: threshold.max(stage.threshold), step, ..stage.clone() })
}

/// Returns `true` if the stage has no members yet.
pub(super) const fn is_new(stage: &Stage) -> bool {
    stage.threshold == 0
}

/// Returns `true` if the stage is the last one.
pub(super) fn is_last(stage: &Stage) -> bool {
    stage.step + 1 >= stage.shares.len() as u64
}
