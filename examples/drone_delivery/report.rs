//! The report: the results of the requests and the figures of the run, as one line of JSON. `page.rs` prints it as text.
use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use steadfast::sharding::ShardId;

use crate::{
    args::{Args, Faults},
    audit::Audit,
    faults::FaultPlan,
    figures::{Figures, Quantiles},
    input::{DeadLetters, Intake},
    interrupt::Interrupt,
    ledger::Tally,
    mover::Grown,
    pipelines::honoured_within,
    record::{End, Inner},
    services::{Books, Service},
    shards::{Traffic, first_map},
};

/// Contents of the shards at the end, and their figures.
pub struct Sharded {
    pub tally: Tally,
    pub traffic: BTreeMap<ShardId, Traffic>,
    /// The shard that this run added.
    pub grown: Option<Grown>,
    /// Number of shards at the start.
    pub first: u32,
}

impl Sharded {
    /// Records that were moved during the job.
    pub fn moved(&self) -> usize {
        first_map(self.first).map_or(0, |map| self.tally.moved_since(&map))
    }

    /// Calls by key that a shard refused and that were routed again.
    pub fn refused(&self) -> u64 {
        self.traffic.values().map(|traffic| traffic.stale + traffic.moving).sum()
    }
}

pub struct Report {
    pub args: Args,
    pub plan: FaultPlan,
    pub record: Inner,
    /// From the start to the last request's end.
    pub elapsed: Duration,
    pub input: usize,
    pub duplicates: usize,
    pub dead_letters: DeadLetters,
    pub figures: [Figures; 5],
    pub audit: Audit,
    pub sharded: Sharded,
    /// From a request's first step to its end.
    pub took: Quantiles,
}

impl Report {
    pub fn new(
        args: &Args,
        plan: FaultPlan,
        intake: Intake,
        record: Inner,
        sharded: Sharded,
        turned_away: [u64; 5],
        books: &[Books; 5],
    ) -> Self {
        let elapsed = record.done.iter().map(|d| d.at).max().unwrap_or_default();
        let mut audit = Audit::new(record.before.iter().chain(&record.done), books);
        if sharded.tally.open > 0 && record.interrupted.is_some() {
            // An unfinished request has partial effects, for which the next run accounts.
            audit.violations.clear();
        }
        let figures = Service::ALL.map(|service| {
            Figures::new(service, &record, turned_away[service as usize], plan.broken(service), elapsed)
        });
        Self {
            args: args.clone(),
            elapsed,
            input: intake.input,
            duplicates: intake.duplicates,
            dead_letters: intake.dead_letters,
            figures,
            audit,
            took: Quantiles::of(record.done.iter().map(|d| d.took)),
            sharded,
            plan,
            record,
        }
    }

    fn count(&self, end: fn(&End) -> bool) -> usize {
        self.record.before.iter().chain(&self.record.done).filter(|d| end(&d.end)).count()
    }

    // The classes are read back from the shards at the end.
    pub fn scheduled(&self) -> usize {
        self.sharded.tally.scheduled
    }

    pub fn rejected(&self) -> usize {
        self.sharded.tally.rejected
    }

    pub fn duplicates(&self) -> usize {
        self.sharded.tally.duplicates
    }

    pub fn dead_lettered(&self) -> usize {
        self.sharded.tally.dead_lettered
    }

    pub fn lost(&self) -> usize {
        self.sharded.tally.lost
    }

    /// Requests left for another run after a signal.
    pub fn unfinished(&self) -> usize {
        if self.record.interrupted.is_some() { self.sharded.tally.open } else { 0 }
    }

    /// Differences between the shards and this process's results, and misplaced records.
    pub fn astray(&self) -> Vec<String> {
        let tally = &self.sharded.tally;
        let mut astray = tally.astray.clone();
        let classes = [
            ("scheduled", tally.scheduled, self.count(|end| *end == End::Scheduled)),
            ("rejected", tally.rejected, self.count(|end| *end == End::Rejected)),
            ("lost", tally.lost, self.count(|end| matches!(end, End::Lost(_)))),
            ("duplicates", tally.duplicates, self.duplicates),
            ("dead-lettered", tally.dead_lettered, self.dead_letters.values().map(|letter| letter.times).sum()),
            ("without an end", tally.open, if self.record.interrupted.is_some() { tally.open } else { 0 }),
        ];
        let differ = classes.into_iter().filter(|(_, kept, wanted)| kept != wanted);
        astray.extend(differ.map(|(class, kept, wanted)| format!("{class}: {kept} in the shards, {wanted} expected")));
        astray
    }

    /// Returns the sum of the classes; each request is in one of them.
    pub fn accounted(&self) -> usize {
        self.scheduled() + self.rejected() + self.duplicates() + self.dead_lettered() + self.lost() + self.unfinished()
    }

    /// Returns `true` if every request is in one class, none was lost, and the services' books agree.
    pub fn is_sound(&self) -> bool {
        let agree = self.audit.violations.is_empty() && self.astray().is_empty();
        let all = self.lost() == 0 && agree && self.accounted() == self.input;
        all && self.passed_after_suspension().is_none_or(|after| after <= honoured_within())
    }

    /// Returns the time from the suspension to the last approved request of the owner.
    pub fn passed_after_suspension(&self) -> Option<Duration> {
        let suspend = self.args.suspend.as_ref()?;
        Some(self.record.approved?.saturating_sub(suspend.at))
    }

    /// Returns the processed requests per second.
    pub fn throughput(&self) -> f64 {
        self.record.done.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the figures as one line of JSON.
    pub fn summary(&self) -> String {
        let all = |f: fn(&Figures) -> usize| self.figures.iter().map(f).sum::<usize>();
        let summary = Summary {
            input: self.input,
            scheduled: self.scheduled(),
            rejected: self.rejected(),
            duplicates: self.duplicates(),
            dead_lettered: self.dead_lettered(),
            lost: self.lost(),
            unfinished: self.unfinished(),
            interrupted: self.record.interrupted.map(Interrupt::as_str),
            resumed: self.record.before.len(),
            calls: all(|f| f.calls),
            retries: all(|f| f.retries),
            breaker_openings: all(|f| f.openings),
            rejected_calls: self.figures.iter().map(|f| f.rejected).sum(),
            put_back: self.record.put_back,
            accepted_p50_ms: millis(self.record.accepted.took.p50),
            accepted_p99_ms: millis(self.record.accepted.took.p99),
            queue_deepest: self.record.accepted.deepest,
            queue_requests: self.record.accepted.requests,
            account_lookups: self.record.looked_up.map_or(0, |stats| stats.hits + stats.misses),
            account_loads: self.record.looked_up.map_or(0, |stats| stats.loads),
            passed_after_suspension_ms: self.passed_after_suspension().map(millis),
            repeats_absorbed: self.audit.repeats,
            half_done: self.audit.half_done,
            reservations_released: self.audit.released,
            double_reservations: self.audit.double_reservations,
            left_reservations: self.audit.left_reservations,
            violations: self.audit.violations.len() + self.astray().len(),
            missed_events: self.record.missed,
            probes: self.record.probed.asked,
            degraded_probes: self.record.probed.degraded,
            liveness_failures: self.record.probed.liveness_failures,
            p50_ms: millis(self.took.p50),
            p99_ms: millis(self.took.p99),
            max_ms: millis(self.took.max),
            elapsed_ms: millis(self.elapsed),
            requests_per_s: tenths(self.throughput()),
            faults: self.args.faults,
            seed: self.args.seed,
            unprotected: self.args.unprotected,
            services: Service::ALL.iter().zip(&self.figures).map(|(s, f)| (s.as_str(), f.into())).collect(),
            records_moved: self.sharded.moved(),
            shard_refusals: self.sharded.refused(),
            shards: self.sharded.tally.shards.len(),
        };
        // The value contains only numbers and names, which JSON can represent.
        serde_json::to_string(&summary).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Summary {
    input: usize,
    scheduled: usize,
    rejected: usize,
    duplicates: usize,
    dead_lettered: usize,
    lost: usize,
    unfinished: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted: Option<&'static str>,
    resumed: usize,
    calls: usize,
    retries: usize,
    breaker_openings: usize,
    rejected_calls: u64,
    put_back: u64,
    accepted_p50_ms: f64,
    accepted_p99_ms: f64,
    queue_deepest: u64,
    queue_requests: u64,
    account_lookups: u64,
    account_loads: u64,
    passed_after_suspension_ms: Option<f64>,
    repeats_absorbed: u64,
    half_done: usize,
    reservations_released: u64,
    double_reservations: u32,
    left_reservations: u32,
    violations: usize,
    missed_events: u64,
    probes: u64,
    degraded_probes: u64,
    liveness_failures: u64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    elapsed_ms: f64,
    requests_per_s: f64,
    faults: Faults,
    seed: u64,
    unprotected: bool,
    services: BTreeMap<&'static str, ServiceSummary>,
    records_moved: usize,
    shard_refusals: u64,
    shards: usize,
}

#[derive(Serialize)]
struct ServiceSummary {
    calls: usize,
    retries: usize,
    failed: usize,
    rejected: u64,
    breaker_openings: usize,
    open_ms: f64,
    saved_ms: f64,
    calls_per_s_closed: Option<f64>,
    calls_per_s_away: Option<f64>,
    calls_per_s_before: Option<f64>,
    calls_per_s_broken: Option<f64>,
    calls_per_s_after: Option<f64>,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

impl From<&Figures> for ServiceSummary {
    fn from(f: &Figures) -> Self {
        Self {
            calls: f.calls,
            retries: f.retries,
            failed: f.failed,
            rejected: f.rejected,
            breaker_openings: f.openings,
            open_ms: millis(f.open),
            saved_ms: millis(f.saved),
            calls_per_s_closed: f.rates.closed.map(tenths),
            calls_per_s_away: f.rates.away.map(tenths),
            calls_per_s_before: f.rates.before.map(tenths),
            calls_per_s_broken: f.rates.broken.map(tenths),
            calls_per_s_after: f.rates.after.map(tenths),
            p50_ms: millis(f.step.p50),
            p99_ms: millis(f.step.p99),
            max_ms: millis(f.step.max),
        }
    }
}

fn millis(d: Duration) -> f64 {
    tenths(d.as_secs_f64() * 1e3)
}

fn tenths(n: f64) -> f64 {
    (n * 10.0).round() / 10.0
}
