//! The judge: compares what the processes have told with what was promised.
//!
//! | counted | promised by |
//! |---|---|
//! | `lost`: accepted orders that no process has done, or that are in no shard | the queue, the listener, sharding |
//! | `doubled_unexplained`: orders that were done again without a fault that explains it | the listener |
//! | `late_writes_accepted`: writes of a leader behind one of its successor | fencing tokens |
//! | `stale_reads`: prices older than an acknowledged invalidation, beyond the stated bound | cache_aside, "Consistency" |
//! | `permits_over`: permits in a window above the limit, its burst and its slack | throttling, guarantee 9 |
//! | `openings_missed`: processes that did not follow an opening of the shared breaker | circuit_breaker, "How it works" |
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    Args, MS,
    cache::{JITTER, LOAD, LOCAL, LOCAL_JITTER, REMOTE, TTL},
    common::say,
    engine::Engine,
    faults::{Fault, Kind},
    limits::{self, BREAKER, POLL, RATE},
    listener::VISIBILITY,
    log::{Fact, Limit, Logs, Told},
};

/// By order: the number of shards that hold and own it.
pub type Rows = BTreeMap<u32, usize>;

/// All that is known of a run.
pub struct Run<'a> {
    pub args: &'a Args,
    pub engine: &'a Engine,
    pub logs: &'a Logs,
    pub faults: &'a [Fault],
    pub rows: &'a Rows,
    /// Processes that have ended by themselves.
    pub ended: usize,
    /// When the first order could be accepted, and the last.
    pub begin: u64,
    pub close: u64,
}

type Process = (usize, u32);

/// Returns the summary, and whether all promises were kept.
pub fn judge(run: &Run<'_>) -> (Value, bool) {
    let accepted = run.logs.accepted();
    let undone = accepted.difference(run.logs.done()).count();
    let is_missing = |order: &&u32| run.logs.done().contains(order) && run.rows.get(order).is_none_or(|n| *n == 0);
    let missing = accepted.iter().filter(is_missing).count();
    let misplaced = run.rows.values().filter(|owners| **owners > 1).count();
    let doubles = run.doubles();
    let unexplained = doubles.values().filter(|fault| fault.is_none()).count();
    let mut doubled_by: BTreeMap<String, usize> = BTreeMap::new();
    for kind in doubles.values().flatten() {
        *doubled_by.entry(format!("{kind:?}").to_lowercase()).or_default() += 1;
    }
    let (late, refused) = run.late_writes();
    let stale = run.stale_reads();
    let over = run.permits_over();
    let (openings, missed) = run.openings();
    let kills = run.faults.iter().filter(|fault| fault.kind == Kind::Kill).count();
    let without = run.without();
    for (part, why) in &without {
        say(format!("  without {part}: {why}"));
    }
    for (part, why, times) in run.failures() {
        say(format!("  {part} failed {times} times: {why}"));
    }
    let done = accepted.intersection(run.logs.done()).count();
    let lost = undone + missing;
    let terms = run.logs.leaders().count();
    let broken = [lost, misplaced, unexplained, late, stale, over, missed, run.ended];
    let shows = done > 0 && terms > 0 && kills == run.args.kills as usize;
    let summary = json!({
        "accepted": accepted.len(), "done": done, "lost": lost, "doubled": doubles.len(), "doubled_unexplained": unexplained,
        "late_writes_accepted": late, "stale_reads": stale, "permits_over": over, "kills": kills,
        "doubled_by": doubled_by, "late_writes_refused": refused, "misplaced": misplaced, "openings": openings, "openings_missed": missed,
        "terms": terms, "pauses": run.count(Kind::Pause), "cuts": run.count(Kind::Cut), "restarts": run.count(Kind::Restart),
        "ended_by_themselves": run.ended, "reads": run.number_of(|fact| matches!(fact, Fact::Read { .. })),
        "permits": run.number_of(|fact| matches!(fact, Fact::Permit { .. })),
        "without": without.keys().collect::<Vec<_>>(),
    });
    (summary, shows && broken == [0; 8])
}

impl Run<'_> {
    fn told(&self) -> impl Iterator<Item = &Told> {
        self.logs.told().iter()
    }

    fn number_of(&self, is: impl Fn(&Fact) -> bool) -> usize {
        self.told().filter(|told| is(&told.fact)).count()
    }

    fn count(&self, kind: Kind) -> usize {
        self.faults.iter().filter(|fact| fact.kind == kind).count()
    }

    /// Time that the engine and its clients take to mend after a server was away.
    fn mending(&self) -> u64 {
        // A stream of a cluster elects a leader for 4 to 12 s.
        if self.engine.servers() > 1 { 15_000 } else { 3_000 }
    }

    /// Returns the parts that did without the engine, with the refusals.
    fn without(&self) -> BTreeMap<&str, &str> {
        let of = |told| match told {
            &Told { fact: Fact::Without { ref part, ref why }, .. } => Some((part.as_str(), why.as_str())),
            _ => None,
        };
        self.told().filter_map(of).collect()
    }

    /// Returns the parts that failed and went on, with the errors and their numbers.
    fn failures(&self) -> Vec<(&str, &str, usize)> {
        let mut all: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for told in self.told() {
            if let Fact::Failed { part, why } = &told.fact {
                *all.entry((part, why)).or_default() += 1;
            }
        }
        all.into_iter().map(|((part, why), times)| (part, why, times)).collect()
    }

    /// Returns the first fault of this process, or of the engine, in this time. A pause shorter than `pause` is none.
    fn fault_of(&self, (node, life): Process, pause: Duration, from: u64, until: u64) -> Option<Kind> {
        let pause = pause.as_millis() as u64;
        let is_file = self.engine.file().is_some();
        let by = |fault: &Fault| {
            let (here, long) = (fault.node == node, fault.until - fault.from >= pause);
            let mended = match fault.kind {
                Kind::Kill if here => fault.until,
                // The client connects again.
                Kind::Cut if here => fault.until + 1_000,
                // A process that is stopped within a transaction keeps the lock of a file from all others.
                Kind::Pause if long && (here || is_file) => fault.until + 1_000,
                Kind::Restart => fault.until + self.mending(),
                _ => return false,
            };
            fault.from <= until && from <= mended
        };
        let stalled = |told: &Told| match told.fact {
            Fact::Stalled { millis } if (told.node, told.life) == (node, life) => {
                millis >= pause && told.at - millis <= until && from <= told.at
            }
            _ => false,
        };
        let fault = self.faults.iter().find(|fault| by(fault)).map(|fault| fault.kind);
        fault.or_else(|| self.told().any(stalled).then_some(Kind::Pause))
    }

    fn is_disturbed(&self, process: Process, from: u64, until: u64) -> bool {
        self.fault_of(process, Duration::ZERO, from, until).is_some()
    }

    /// Returns the orders that were done more than once, with the fault that explains it: the process of an earlier time was
    /// killed before it could settle, or one of both stood still, or it or the engine could not be reached.
    fn doubles(&self) -> BTreeMap<u32, Option<Kind>> {
        let mut begun: HashMap<(u32, Process, u32), u64> = HashMap::new();
        let mut times: BTreeMap<u32, Vec<(u64, u64, Process)>> = BTreeMap::new();
        for told in self.told() {
            let process = (told.node, told.life);
            match told.fact {
                Fact::Began { order, delivery } => _ = begun.insert((order, process, delivery), told.at),
                Fact::Done { order, delivery } => {
                    let from = begun.get(&(order, process, delivery)).copied().unwrap_or(told.at);
                    times.entry(order).or_default().push((from, told.at, process));
                }
                _ => {}
            }
        }
        times.retain(|_, times| times.len() > 1);
        // A lease is renewed after a third of its time.
        let lease = VISIBILITY / 2;
        let explain = |order: u32, mut times: Vec<(u64, u64, Process)>| {
            times.sort_unstable();
            let explain = |pair: &[(u64, u64, Process)]| {
                let (from, until) = (pair[0].0, pair[0].1.max(pair[1].0));
                let later = || self.fault_of(pair[1].2, lease, from, until).filter(|kind| *kind != Kind::Kill);
                self.fault_of(pair[0].2, lease, from, until).or_else(later)
            };
            let faults: Option<Vec<Kind>> = times.windows(2).map(explain).collect();
            if faults.is_none() {
                say(format!("  order {order} was done again without a fault: {times:?}"));
            }
            (order, faults.and_then(|faults| faults.first().copied()))
        };
        times.into_iter().map(|(order, times)| explain(order, times)).collect()
    }

    /// Returns the number of leaders' writes that lie behind a write of a later leader, and of writes that were refused.
    fn late_writes(&self) -> (usize, usize) {
        let of = |told: &Told| match told.fact {
            Fact::Wrote { token, version } | Fact::Saw { token, version } => Some((version, token)),
            _ => None,
        };
        let mut writes: Vec<(u64, u64)> = self.told().filter_map(of).collect();
        writes.sort_unstable();
        writes.dedup();
        let (mut highest, mut late) = (0, 0);
        for (version, token) in writes {
            if token < highest {
                late += 1;
                say(format!("  version {version} was written under token {token}, behind one under {highest}"));
            }
            highest = highest.max(token);
        }
        (late, self.number_of(|fact| matches!(fact, Fact::Refused { .. })))
    }

    /// Returns the number of reads that gave a price older than an invalidation that had been acknowledged, for longer than
    /// the page states: at once in the process that invalidated, after the local time to live in the others, and after the
    /// whole time to live where they could not be told.
    fn stale_reads(&self) -> usize {
        let is_remote = !self.without().contains_key(REMOTE);
        let mut changes: BTreeMap<u64, Vec<(u64, u64, Process, bool)>> = BTreeMap::new();
        for told in self.told() {
            if let Fact::Invalidated { product, price, everywhere } = told.fact {
                let change = (told.at, price, (told.node, told.life), everywhere);
                changes.entry(product).or_default().push(change);
            }
        }
        let mut stale = 0;
        for told in self.told() {
            let Fact::Read { product, price, asked } = told.fact else { continue };
            let reader = (told.node, told.life);
            let is_stale = |&&(at, newer, by, everywhere): &&(u64, u64, Process, bool)| {
                let bound = match everywhere && is_remote {
                    _ if by == reader => Duration::ZERO,
                    true => LOCAL + LOCAL_JITTER,
                    // A load that had read the price before may have ended after the invalidation.
                    false => TTL + JITTER + LOAD,
                };
                price < newer && asked > at + bound.as_millis() as u64
            };
            if let Some((at, newer, by, everywhere)) = changes.get(&product).and_then(|all| all.iter().find(is_stale)) {
                stale += 1;
                if stale <= 20 {
                    say(format!(
                        "  process {reader:?} read price {price} of {product} at {}, {} ms after the invalidation of {newer} by \
                         {by:?} (everywhere: {everywhere})",
                        self.second(asked),
                        asked - at
                    ));
                }
            }
        }
        stale
    }

    /// Returns the number of permits above the limits, in the window of each length that exceeds them most.
    fn permits_over(&self) -> usize {
        let alone = self.without().contains_key(RATE);
        let mut over = 0;
        for limit in [Limit::Payments, Limit::Mails] {
            let of = |told: &Told| match told.fact {
                Fact::Permit { limit: of, asked } if of == limit => Some((asked, told.at)),
                _ => None,
            };
            let mut permits: Vec<(u64, u64)> = self.told().filter_map(of).collect();
            permits.sort_unstable();
            for window in [MS(100), MS(1_000), MS(5_000), MS(30_000)] {
                let allowed = if alone { self.allowed_alone(limit, window) } else { allowed_together(limit, window) };
                let (at, most) = most_in(&permits, window);
                if most > allowed {
                    over += most - allowed;
                    say(format!(
                        "  {limit:?}: {most} permits within {window:?} at {}, {allowed} allowed",
                        self.second(at)
                    ));
                }
            }
        }
        over
    }

    /// A process that starts anew has a whole burst again.
    fn allowed_alone(&self, limit: Limit, window: Duration) -> usize {
        let quota = limits::share(limit, self.args.processes);
        let lives = self.number_of(|fact| matches!(fact, Fact::Started));
        let even = f64::from(quota.permits * self.args.processes) * window.as_secs_f64();
        even.ceil() as usize + lives * quota.burst.unwrap_or(quota.permits) as usize
    }

    /// Returns the number of openings that were told to the others, and of processes that did not follow one in time,
    /// although nothing disturbed them.
    fn openings(&self) -> (usize, usize) {
        if self.without().contains_key(BREAKER) {
            return (0, 0);
        }
        let mut states: BTreeMap<Process, Vec<(u64, bool)>> = BTreeMap::new();
        let mut ends: BTreeMap<Process, u64> = BTreeMap::new();
        for told in self.told() {
            let process = (told.node, told.life);
            if let Fact::Breaker { open } = told.fact {
                states.entry(process).or_default().push((told.at, open));
            }
            states.entry(process).or_default();
            ends.insert(process, told.at);
        }
        // One poll, one request, and as much again for a busy machine.
        let within = 2 * (POLL.as_millis() as u64 + 1_000);
        let (mut openings, mut missed) = (0, 0);
        for told in self.told() {
            let Fact::Reported { millis } = told.fact else { continue };
            openings += 1;
            // A short rest of an opening may be over before others read of it.
            if millis < 800 || self.is_disturbed((told.node, told.life), told.at, told.at + within) {
                continue;
            }
            for (process, changes) in &states {
                let lives = self
                    .told()
                    .find(|fact| (fact.node, fact.life) == *process)
                    .is_some_and(|first| first.at + 2_000 < told.at && ends[process] > told.at + within);
                // A breaker that has opened by itself a little earlier is left as it is.
                let follows = changes.iter().any(|(at, open)| *open && *at + 3_000 > told.at && *at < told.at + within);
                let from = told.at.saturating_sub(3_000);
                if lives && !follows && !self.is_disturbed(*process, from, told.at + within) {
                    missed += 1;
                    say(format!("  process {process:?} did not follow the opening at {}", self.second(told.at)));
                }
            }
        }
        (openings, missed)
    }

    /// Returns this time as seconds of the run.
    pub fn second(&self, at: u64) -> String {
        format!("{:.3} s", (at as f64 - self.begin as f64) / 1e3)
    }
}

fn allowed_together(limit: Limit, window: Duration) -> usize {
    let config = limits::config(limit);
    let quota = config.quota();
    // The wall clock of the processes is one; it is read in milliseconds.
    let (burst, slack) = (quota.burst.unwrap_or(quota.permits), config.slack(MS(2)));
    (f64::from(quota.permits) * window.as_secs_f64()).ceil() as usize + (burst + slack) as usize
}

/// Returns the window with the most permits that were certainly granted within it: its begin, and their number.
fn most_in(permits: &[(u64, u64)], window: Duration) -> (u64, usize) {
    let millis = window.as_millis() as u64;
    let within = |(at, (from, _)): (usize, &(u64, u64))| {
        let end = from + millis;
        let some = permits[at..].iter().take_while(|(asked, _)| *asked < end);
        (*from, some.filter(|(_, granted)| *granted < end).count())
    };
    permits.iter().enumerate().map(within).max_by_key(|(_, most)| *most).unwrap_or_default()
}
