//! The report: the figures of a run, for a person and as JSON.
use std::{collections::HashMap, fmt, time::Duration};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::{
    args::{Args, Faults},
    faults::FaultPlan,
    record::{Call, End, Inner},
    services::{Running, Service},
    workflow::Workflow,
};

pub struct Report {
    pub args: Args,
    pub plan: FaultPlan,
    pub record: Inner,
    /// From the start to the last request's end.
    pub elapsed: Duration,
    input: usize,
    duplicates: usize,
    services: [ServiceFigures; 5],
    /// What the services did that the report does not account for, or the other way round.
    violations: Vec<String>,
    half_done: usize,
}

/// What one service and its pipeline went through.
#[derive(Debug, Default, Clone)]
struct ServiceFigures {
    calls: usize,
    retries: usize,
    failed: usize,
    rejected: u64,
    openings: usize,
    open: Duration,
    /// Calls a second while its breaker was closed, and while it was open or probing.
    rate_closed: f64,
    rate_away: Option<f64>,
    saved: Duration,
    p50: Duration,
    p99: Duration,
    max: Duration,
}

impl Report {
    pub fn new(
        args: &Args,
        plan: &FaultPlan,
        input: usize,
        duplicates: usize,
        workflow: &Workflow,
        running: &[Running],
    ) -> Self {
        let record = workflow.record.lock().clone();
        let elapsed = record.done.iter().map(|d| d.at).max().unwrap_or_default();
        let services = Service::ALL.map(|service| {
            let breaker = workflow.protections[service as usize].breaker.as_ref();
            ServiceFigures::new(service, &record, breaker.map_or(0, |b| b.snapshot().rejected), elapsed)
        });
        let (violations, half_done) = audit(&record, running);
        Self {
            args: args.clone(),
            plan: plan.clone(),
            record,
            elapsed,
            input,
            duplicates,
            services,
            violations,
            half_done,
        }
    }

    fn count(&self, end: fn(&End) -> bool) -> usize {
        self.record.done.iter().filter(|d| end(&d.end)).count()
    }

    fn scheduled(&self) -> usize {
        self.count(|end| *end == End::Scheduled)
    }

    fn rejected(&self) -> usize {
        self.count(|end| *end == End::Rejected)
    }

    fn lost(&self) -> usize {
        self.count(|end| matches!(end, End::Lost(_)))
    }

    fn dead_lettered(&self) -> usize {
        self.record.dead_letters.values().map(Vec::len).sum()
    }

    /// Whether every request ended in one class, none was lost, and the services agree.
    pub fn is_sound(&self) -> bool {
        let classes = self.scheduled() + self.rejected() + self.duplicates + self.dead_lettered() + self.lost();
        self.lost() == 0 && self.violations.is_empty() && classes == self.input
    }

    /// The figures as one line of JSON.
    pub fn summary(&self) -> Value {
        let all = |f: fn(&ServiceFigures) -> usize| self.services.iter().map(f).sum::<usize>();
        let took = quantiles(self.record.done.iter().map(|d| d.took));
        let services: serde_json::Map<String, Value> = Service::ALL
            .iter()
            .zip(&self.services)
            .map(|(service, f)| {
                let figures = json!({
                    "calls": f.calls, "retries": f.retries, "failed": f.failed, "rejected": f.rejected,
                    "breaker_openings": f.openings, "open_ms": millis(f.open), "saved_ms": millis(f.saved),
                    "calls_per_s_closed": f.rate_closed.round(), "calls_per_s_away": f.rate_away.map(f64::round),
                    "p50_ms": millis(f.p50), "p99_ms": millis(f.p99), "max_ms": millis(f.max),
                });
                (service.to_string(), figures)
            })
            .collect();
        json!({
            "input": self.input, "scheduled": self.scheduled(), "rejected": self.rejected(),
            "duplicates": self.duplicates, "dead_lettered": self.dead_lettered(), "lost": self.lost(),
            "calls": all(|f| f.calls), "retries": all(|f| f.retries), "breaker_openings": all(|f| f.openings),
            "put_back": self.record.put_back, "half_done": self.half_done, "violations": self.violations.len(),
            "p50_ms": millis(took.0), "p99_ms": millis(took.1), "max_ms": millis(took.2),
            "elapsed_ms": millis(self.elapsed), "services": services,
        })
    }
}

impl ServiceFigures {
    fn new(service: Service, record: &Inner, rejected: u64, elapsed: Duration) -> Self {
        let calls = &record.calls[service as usize];
        let away = record.away(service, elapsed);
        let away_for: Duration = away.iter().map(|(from, to)| *to - *from).sum();
        let is_away = |call: &&Call| away.iter().any(|(from, to)| (*from..*to).contains(&call.at));
        let calls_away = calls.iter().filter(is_away).count();
        let per_second = |n: usize, d: Duration| n as f64 / d.as_secs_f64().max(1e-9);
        let failed: Vec<&Call> = calls.iter().filter(|c| !c.ok).collect();
        let failing: Duration = failed.iter().map(|c| c.took).sum();
        let mean = failing.checked_div(failed.len() as u32).unwrap_or_default();
        let (openings, open) = record.openings(service, elapsed);
        let (p50, p99, max) = quantiles(record.steps[service as usize].iter().copied());
        Self {
            calls: calls.len(),
            retries: calls.iter().filter(|c| c.attempt > 1).count(),
            failed: failed.len(),
            rejected,
            openings,
            open,
            rate_closed: per_second(calls.len() - calls_away, elapsed.saturating_sub(away_for)),
            rate_away: (!away.is_empty()).then(|| per_second(calls_away, away_for)),
            saved: mean.mul_f64(rejected as f64),
            p50,
            p99,
            max,
        }
    }
}

/// Holds what the services did against what became of the requests.
fn audit(record: &Inner, running: &[Running]) -> (Vec<String>, usize) {
    let effects: Vec<HashMap<String, u32>> = running.iter().map(Running::effects).collect();
    let did = |service: Service, key: &str| effects[service as usize].get(key).copied().unwrap_or(0);
    let (mut violations, mut half_done, mut drones) = (Vec::new(), 0, 0);
    for done in &record.done {
        let (id, package) = (done.request.id.to_string(), &done.request.package.id);
        let found = [
            did(Service::Package, package),
            did(Service::Transport, &id),
            did(Service::Drone, &id),
            did(Service::Delivery, &id),
        ];
        drones += found[2];
        let wanted = match &done.end {
            End::Scheduled => [1, u32::from(done.request.needs_transport()), 1, 1],
            End::Rejected => [0; 4],
            End::Lost(_) => {
                half_done += usize::from(found != [0; 4]);
                continue;
            }
        };
        if found != wanted {
            violations.push(format!("{id} is {:?}, and has (package, transport, drone, delivery) {found:?}", done.end));
        }
    }
    let all = effects[Service::Drone as usize].values().sum::<u32>();
    if all != drones {
        violations.push(format!("{all} drones fly, {drones} of them for a request"));
    }
    (violations, half_done)
}

/// Median, 99th percentile and maximum.
pub fn quantiles(of: impl Iterator<Item = Duration>) -> (Duration, Duration, Duration) {
    // 3 digits, microseconds: a bound of an hour never fails to be made, and longer is counted as that.
    let Ok(mut histogram) = Histogram::<u64>::new_with_max(3_600_000_000, 3) else { return Default::default() };
    for d in of {
        histogram.saturating_record(u64::try_from(d.as_micros()).unwrap_or(u64::MAX));
    }
    let at = |q| Duration::from_micros(histogram.value_at_quantile(q));
    if histogram.is_empty() { Default::default() } else { (at(0.5), at(0.99), at(1.0)) }
}

fn millis(d: Duration) -> f64 {
    (d.as_secs_f64() * 10_000.0).round() / 10.0
}

/// A number with its thousands apart.
pub fn grouped(n: impl TryInto<u64>) -> String {
    let digits = n.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time as one reads it.
fn short(d: Duration) -> String {
    match d.as_secs_f64() {
        0.0 => "-".into(),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.classes(f)?;
        self.table(f)?;
        self.notes(f)
    }
}

impl Report {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Args { seed, concurrency, unprotected, .. } = self.args;
        let faults = match self.args.faults {
            Faults::None => "no faults".to_owned(),
            Faults::Flaky => format!("flaky services (seed {seed})"),
            Faults::Storm => format!("a storm (seed {seed})"),
        };
        let rate = self.args.rate().map_or("as fast as it goes".to_owned(), |rate| format!("{rate} started a second"));
        let bare = if unprotected { ", UNPROTECTED" } else { "" };
        writeln!(f, "\n{} requests, {faults}{bare}; {concurrency} at once, {rate}\n", grouped(self.input))?;
        for (what, event) in
            [("refuses all connections", &self.plan.crash), ("fails 85 % of its calls", &self.plan.brownout)]
        {
            if let Some((service, from, lasts)) = event {
                let (from, to) = (from.as_secs_f64(), (*from + *lasts).as_secs_f64());
                writeln!(f, "  from {from:.1} s to {to:.1} s {service} {what}")?;
            }
        }
        if self.plan.crash.is_some() { writeln!(f) } else { Ok(()) }
    }

    fn classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let put_back = match self.record.put_back {
            0 => String::new(),
            n => format!("   ({} times put back, and gone on later)", grouped(n)),
        };
        writeln!(f, "  scheduled     {:>9}{put_back}", grouped(self.scheduled()))?;
        writeln!(f, "  rejected      {:>9}   by the account service: owner suspended", grouped(self.rejected()))?;
        writeln!(f, "  duplicates    {:>9}   handled once", grouped(self.duplicates))?;
        writeln!(f, "  dead-lettered {:>9}", grouped(self.dead_lettered()))?;
        let mut not_json = Vec::new();
        for (why, lines) in &self.record.dead_letters {
            if why.starts_with("not JSON") {
                not_json.extend(lines.iter().copied());
            } else {
                writeln!(f, "  {:>23}   {why} (line {})", grouped(lines.len()), some(lines))?;
            }
        }
        if !not_json.is_empty() {
            not_json.sort_unstable();
            writeln!(f, "  {:>23}   not JSON (line {})", grouped(not_json.len()), some(&not_json))?;
        }
        writeln!(f, "  lost          {:>9}", grouped(self.lost()))?;
        let mut reasons: HashMap<&str, usize> = HashMap::new();
        for done in &self.record.done {
            if let End::Lost(why) = &done.end {
                *reasons.entry(why).or_default() += 1;
            }
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(why, n)| (std::cmp::Reverse(*n), *why));
        for (why, n) in reasons.iter().take(6) {
            writeln!(f, "  {:>23}   {why}", grouped(*n))?;
        }
        if self.half_done > 0 {
            writeln!(f, "  {:>23}   of them left half-done at the services", grouped(self.half_done))?;
        }
        Ok(())
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n  {:<10}{:>8}{:>9}{:>8}{:>10}{:>8}{:>9}{:>10}{:>8}{:>10}{:>9}{:>9}{:>9}",
            "service",
            "calls",
            "retries",
            "failed",
            "rejected",
            "opened",
            "open",
            "calls/s",
            "away",
            "saved",
            "p50",
            "p99",
            "max"
        )?;
        for (service, s) in Service::ALL.iter().zip(&self.services) {
            writeln!(
                f,
                "  {service:<10}{:>8}{:>9}{:>8}{:>10}{:>8}{:>9}{:>10.0}{:>8}{:>10}{:>9}{:>9}{:>9}",
                grouped(s.calls),
                grouped(s.retries),
                grouped(s.failed),
                grouped(s.rejected),
                s.openings,
                short(s.open),
                s.rate_closed,
                s.rate_away.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
                short(s.saved),
                short(s.p50),
                short(s.p99),
                short(s.max),
            )?;
        }
        Ok(())
    }

    fn notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n  calls/s: while the breaker is closed; away: while it is open or probing. saved: rejected calls times the"
        )?;
        writeln!(f, "  mean time of a failing call. p50, p99, max: of a step that succeeded, with its retries.")?;
        let (p50, p99, max) = quantiles(self.record.done.iter().map(|d| d.took));
        let per_second = self.record.done.len() as f64 / self.elapsed.as_secs_f64().max(1e-9);
        writeln!(
            f,
            "\n  {} in {}: {per_second:.0} requests a second",
            grouped(self.record.done.len()),
            short(self.elapsed)
        )?;
        writeln!(
            f,
            "  a request takes {} (p50), {} (p99), {} (max) from its first step",
            short(p50),
            short(p99),
            short(max)
        )?;
        let mut owners: HashMap<&str, usize> = HashMap::new();
        for done in &self.record.done {
            *owners.entry(&done.request.owner).or_default() += 1;
        }
        if let Some((hot, n)) = owners.into_iter().max_by_key(|(owner, n)| (*n, *owner))
            && n * 10 > self.record.done.len()
        {
            let (its, others): (Vec<_>, Vec<_>) = self.record.done.iter().partition(|d| d.request.owner == hot);
            let half = |done: &[&crate::record::Done]| short(quantiles(done.iter().map(|d| d.at)).0);
            writeln!(
                f,
                "  {hot} sent {} of them: half of its requests were done after {}, half of the others' after {}",
                grouped(n),
                half(&its),
                half(&others)
            )?;
        }
        match self.violations.as_slice() {
            [] if self.half_done > 0 => {
                writeln!(f, "  the services' own books agree, but for the lost requests that were left half-done\n")
            }
            [] => writeln!(
                f,
                "  the services' own books agree: one drone for each scheduled request, none for any other\n"
            ),
            violations => {
                writeln!(f, "  the services' own books do NOT agree, {} times:", violations.len())?;
                violations.iter().take(5).try_for_each(|v| writeln!(f, "    {v}"))?;
                writeln!(f)
            }
        }
    }
}

/// The first few line numbers.
fn some(lines: &[usize]) -> String {
    let mut text: Vec<String> = lines.iter().take(6).map(ToString::to_string).collect();
    if lines.len() > 6 {
        text.push("...".into());
    }
    text.join(", ")
}
