//! A policy that counts and times calls for the console, over the last 15 minutes.
use std::{collections::BTreeMap, fmt, future::Future, sync::Arc, time::Duration};

use super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{ReadOut, Table},
    recent::{MINUTES, Minutes, number_of},
};
use crate::{
    call::{Attempt, CallContext, Explanation, Layer, Policy},
    outcome::{Class, Outcome, PolicyKind},
    port::BoxFuture,
    sync::Mutex,
    time::{Clock, Instant},
};

/// Classes of latencies: four for each power of two of microseconds, so that a percentile is at
/// most a fifth too high.
const CLASSES: usize = 4 * 30;

/// A policy that counts and times the calls that pass it, for a [console](super::Console). Clones
/// share their counts.
///
/// It takes a lock for some nanoseconds at the end of each call. As the outermost policy it counts
/// what callers see.
#[derive(Clone)]
pub struct Calls(Arc<Counts>);

struct Counts {
    clock: Clock,
    /// Oldest first; without those in which no call ended.
    minutes: Mutex<Minutes<Minute>>,
}

/// Rejected calls by the policy that rejected them, and its reason.
#[derive(Default)]
pub(super) struct Rejections(Vec<((PolicyKind, &'static str), u64)>);

impl Rejections {
    fn add(&mut self, of: (PolicyKind, &'static str), calls: u64) {
        match self.0.iter_mut().find(|(other, _)| *other == of) {
            Some((_, n)) => *n += calls,
            None => self.0.push((of, calls)),
        }
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|(_, n)| n).sum()
    }

    /// Returns the number of calls that policies of this kind rejected.
    pub(super) fn by(&self, kind: PolicyKind) -> u64 {
        self.0.iter().filter(|((by, _), _)| *by == kind).map(|(_, n)| n).sum()
    }
}

/// The calls that ended in one minute.
struct Minute {
    successes: u64,
    failures: BTreeMap<&'static str, u64>,
    rejections: Rejections,
    cancelled: u64,
    latencies: [u32; CLASSES],
}

impl Default for Minute {
    fn default() -> Self {
        let (failures, rejections) = (BTreeMap::new(), Rejections::default());
        Self { successes: 0, failures, rejections, cancelled: 0, latencies: [0; CLASSES] }
    }
}

impl Minute {
    fn ended(&self) -> u64 {
        self.successes + self.failures.values().sum::<u64>() + self.rejections.sum()
    }
}

/// The end of a call.
enum End {
    Success,
    Failure(&'static str),
    Rejection(PolicyKind, &'static str),
    Cancelled,
}

impl Calls {
    /// Creates a policy that reads this clock.
    pub fn new(clock: &Clock) -> Self {
        Self(Arc::new(Counts { clock: clock.clone(), minutes: Mutex::default() }))
    }

    /// Returns what the last 15 minutes have seen.
    pub(super) fn out(&self) -> ReadOut {
        self.0.read()
    }

    pub(super) fn rejections(&self) -> Rejections {
        let number = number_of(self.0.clock.now());
        rejections_of(self.0.minutes.lock().until(number))
    }
}

impl Counts {
    fn count(&self, begun: Instant, end: End) {
        let now = self.clock.now();
        let number = number_of(now);
        let mut minutes = self.minutes.lock();
        let minute = minutes.at(number);
        match end {
            End::Success => minute.successes += 1,
            End::Failure(kind) => *minute.failures.entry(kind).or_default() += 1,
            End::Rejection(policy, reason) => minute.rejections.add((policy, reason), 1),
            End::Cancelled => minute.cancelled += 1,
        }
        // A rejection is fast, and would hide how slow the others are.
        if matches!(end, End::Success | End::Failure(_)) {
            let class = &mut minute.latencies[class(now.saturating_since(begun))];
            *class = class.saturating_add(1);
        }
    }

    fn read(&self) -> ReadOut {
        let number = number_of(self.clock.now());
        let minutes = self.minutes.lock();
        let (mut failures, rejections) = (BTreeMap::<_, u64>::new(), rejections_of(minutes.until(number)));
        let (mut latencies, mut ended, mut cancelled) = ([0; CLASSES], 0, 0);
        for (_, minute) in minutes.until(number) {
            minute.failures.iter().for_each(|(kind, n)| *failures.entry(*kind).or_default() += n);
            latencies.iter_mut().zip(minute.latencies).for_each(|(all, n)| *all += u64::from(n));
            ended += minute.ended();
            cancelled += minute.cancelled;
        }
        let share = |n: u64| if ended == 0 { 0.0 } else { (n as f64 * 1000.0 / ended as f64).round() / 10.0 };
        let percentile =
            |share| percentile(&latencies, share).map_or_else(|| "none".to_owned(), |took| format!("{took:?}"));
        let by_minute = |count: fn(&Minute) -> u64| {
            let of = |at: u64| minutes.until(number).find(|(of, _)| *of == at).map_or(0, |(_, minute)| count(minute));
            // The minute that has not ended is no point yet.
            (number.saturating_sub(MINUTES - 1)..number).map(|at| of(at) as f64).collect()
        };
        let mut kinds = Table::new("Failures and refusals, 15 minutes", &["kind", "calls"]);
        failures.iter().for_each(|(kind, n)| kinds.push([format!("failed: {kind}"), n.to_string()]));
        for ((policy, reason), n) in &rejections.0 {
            kinds.push([format!("refused by the {policy}: {reason}"), n.to_string()]);
        }
        ReadOut::new("in use")
            .fact("calls, 15 min", ended)
            .fact("failed, %", share(failures.values().sum()))
            .fact("refused, %", share(rejections.sum()))
            .fact("99th percentile", percentile(0.99))
            .fact("median", percentile(0.5))
            .fact("cancelled", cancelled)
            .line("calls by minute", by_minute(Minute::ended))
            .line("failed by minute", by_minute(|minute| minute.failures.values().sum()))
            .line("refused by minute", by_minute(|minute| minute.rejections.sum()))
            .table(kinds)
    }
}

/// Returns the class of a latency.
fn class(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(4);
    let power = micros.ilog2();
    // The two bits behind the first one.
    let part = (micros >> (power - 2)) & 3;
    (4 * (power as usize - 2) + part as usize).min(CLASSES - 1)
}

/// Returns the upper end of a class.
fn bound(class: usize) -> Duration {
    let (power, part) = (class / 4 + 2, class as u64 % 4);
    Duration::from_micros((5 + part) << (power - 2))
}

fn percentile(latencies: &[u64; CLASSES], share: f64) -> Option<Duration> {
    let all: u64 = latencies.iter().sum();
    let rank = (all as f64 * share).ceil() as u64;
    let mut below = 0;
    let reaches = |n: &u64| {
        below += n;
        below >= rank.max(1)
    };
    latencies.iter().position(reaches).map(bound)
}

impl Policy for Calls {
    #[inline]
    fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            let mut call = Call { counts: &self.0, begun: self.0.clock.now(), end: End::Cancelled };
            let outcome = inner.attempt(cx).await;
            call.end = match outcome {
                Outcome::Judged(Class::Failure { kind, .. }) => End::Failure(kind.as_str()),
                Outcome::Judged(Class::Success | Class::Ignore) => End::Success,
                Outcome::Rejected => {
                    let rejected = inner.call_state().rejection();
                    let known = rejected.map(|rejected| (rejected.by(), rejected.reason().as_str()));
                    let (policy, reason) = known.unwrap_or((PolicyKind::Custom("call"), "unknown"));
                    End::Rejection(policy, reason)
                }
            };
            outcome
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let settings = "counts and times calls";
        explanation.push(Layer::new(PolicyKind::Custom("counter"), None, settings).with_component(self));
    }
}

fn rejections_of<'m>(minutes: impl Iterator<Item = (u64, &'m Minute)>) -> Rejections {
    let mut all = Rejections::default();
    minutes.flat_map(|(_, minute)| &minute.rejections.0).for_each(|(of, n)| all.add(*of, *n));
    all
}

/// A call in flight. It is counted when it is dropped, at its end or before.
struct Call<'a> {
    counts: &'a Counts,
    begun: Instant,
    end: End,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.counts.count(self.begun, std::mem::replace(&mut self.end, End::Cancelled));
    }
}

impl Panel for Calls {
    fn view(&self) -> View {
        View(Box::new(self.clone()))
    }
}

impl Source for Calls {
    fn kind(&self) -> &'static str {
        "calls"
    }

    fn read<'a>(&'a self, _: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        ready(Ok(self.0.read()))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        ready(unknown(order))
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_at_most_a_fifth_above_the_latency() {
        for micros in (4..10_000).chain((0..600).map(|n| 10_000 + n * 999_983)) {
            let took = Duration::from_micros(micros);
            let shown = bound(class(took));
            assert!(shown > took && shown.as_nanos() * 4 <= took.as_nanos() * 5, "{took:?}: {shown:?}");
        }
        let mut latencies = [0; CLASSES];
        assert_eq!(percentile(&latencies, 0.5), None);
        latencies[class(Duration::from_millis(1))] = 99;
        latencies[class(Duration::from_secs(1))] = 1;
        assert_eq!(percentile(&latencies, 0.99), Some(bound(class(Duration::from_millis(1)))));
        assert_eq!(percentile(&latencies, 1.0), Some(bound(class(Duration::from_secs(1)))));
    }
}
