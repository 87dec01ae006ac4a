//! Figures of one service and its pipeline, and their text form.
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::{
    record::{Call, Inner},
    services::Service,
};

/// The figures of one service.
#[derive(Debug, Default, Clone)]
pub struct Figures {
    pub calls: usize,
    pub retries: usize,
    pub failed: usize,
    /// Calls that the breaker rejected.
    pub rejected: u64,
    pub openings: usize,
    pub open: Duration,
    /// Rejected calls times the mean time of a failing call.
    pub saved: Duration,
    pub rates: Rates,
    /// Latency of a successful step, with its retries.
    pub step: Quantiles,
}

/// Calls per second; `None` without such a period.
#[derive(Debug, Default, Clone, Copy)]
pub struct Rates {
    pub closed: Option<f64>,
    /// While the breaker was open or half-open.
    pub away: Option<f64>,
    /// Before, while and after the service was broken: as planned, else from its breaker's first opening to its last close.
    pub before: Option<f64>,
    pub broken: Option<f64>,
    pub after: Option<f64>,
}

/// Median, 99th percentile, maximum.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Quantiles {
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

impl Figures {
    /// `broken` is the planned failure; `end` is the end of the run.
    pub fn new(
        service: Service,
        record: &Inner,
        rejected: u64,
        broken: Option<(Duration, Duration)>,
        end: Duration,
    ) -> Self {
        let calls = &record.calls[service as usize];
        let failed: Vec<&Call> = calls.iter().filter(|c| !c.ok).collect();
        let failing: Duration = failed.iter().map(|c| c.took).sum();
        let mean = failing.checked_div(u32::try_from(failed.len()).unwrap_or(u32::MAX)).unwrap_or_default();
        let (openings, open) = record.openings(service, end);
        Self {
            calls: calls.len(),
            retries: calls.iter().filter(|c| c.attempt > 1).count(),
            failed: failed.len(),
            rejected,
            openings,
            open,
            saved: mean.mul_f64(rejected as f64),
            rates: Rates::new(calls, &record.away(service, end), broken, end),
            step: Quantiles::of(record.steps[service as usize].iter().copied()),
        }
    }
}

impl Rates {
    fn new(calls: &[Call], away: &[(Duration, Duration)], broken: Option<(Duration, Duration)>, end: Duration) -> Self {
        let rate = |pieces: &[(Duration, Duration)]| {
            let lasts: Duration = pieces.iter().map(|(from, to)| to.saturating_sub(*from)).sum();
            let n = calls.iter().filter(|c| pieces.iter().any(|(from, to)| (*from..*to).contains(&c.at))).count();
            (!lasts.is_zero()).then(|| n as f64 / lasts.as_secs_f64())
        };
        let mut closed = Vec::new();
        let mut since = Duration::ZERO;
        for (from, to) in away {
            closed.push((since, *from));
            since = *to;
        }
        closed.push((since, end));
        let opened = away.first().zip(away.last()).map(|((from, _), (_, to))| (*from, *to));
        let mut rates = Self { closed: rate(&closed), away: rate(away), ..Self::default() };
        if let Some((from, to)) = broken.or(opened) {
            // The period after begins when calls are admitted again, and ends with the work.
            let well = opened.map_or(to, |(_, closed)| to.max(closed)).min(end);
            let last = calls.iter().map(|c| c.at).max().unwrap_or_default();
            rates.before = rate(&[(Duration::ZERO, from.min(end))]);
            rates.broken = rate(&[(from.min(end), to.min(end))]);
            rates.after = rate(&[(well, last)]);
        }
        rates
    }
}

impl Quantiles {
    pub fn of(durations: impl Iterator<Item = Duration>) -> Self {
        // 3 digits, microseconds: a bound of an hour never fails to be made, and longer is counted as that.
        let Ok(mut histogram) = Histogram::<u64>::new_with_max(3_600_000_000, 3) else { return Self::default() };
        for d in durations {
            histogram.saturating_record(u64::try_from(d.as_micros()).unwrap_or(u64::MAX));
        }
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |q| Duration::from_micros(histogram.value_at_quantile(q));
        Self { p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// Formats a number with separated thousands.
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

/// Formats a duration.
pub fn short(d: Duration) -> String {
    match d.as_secs_f64() {
        0.0 => "-".into(),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 99.995 => format!("{s:.2} s"),
        s => format!("{} s", grouped(s.round() as u64)),
    }
}

/// Formats a rate; a small one keeps its first digits.
pub fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => "-".into(),
        Some(rate) if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => grouped(rate.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn rates_tell_before_while_and_after() {
        // 10 calls a second for 2 s, none for 3 s but one probe, 20 a second for 1 s.
        let at = |from: u64, gap: u64, n: u64| (0..n).map(move |i| Duration::from_millis(from + i * gap));
        let calls: Vec<Call> = at(0, 100, 20)
            .chain(at(4000, 1, 1))
            .chain(at(5000, 50, 21))
            .map(|at| Call { at, took: Duration::ZERO, attempt: 1, ok: true })
            .collect();
        let rates = Rates::new(&calls, &[(s(2), s(5))], Some((s(2), s(4))), s(6));
        assert_eq!((rates.before, rates.broken, rates.after), (Some(10.0), Some(0.0), Some(20.0)));
        assert_eq!(rates.away, Some(1.0 / 3.0));
        let never = Rates::new(&calls, &[], None, s(6));
        assert!(never.before.is_none() && never.away.is_none() && never.closed.is_some());
    }

    #[test]
    fn figures_read_well() {
        assert_eq!((grouped(7_usize), grouped(1_234_567_usize)), ("7".into(), "1,234,567".into()));
        assert_eq!(short(Duration::from_micros(3_400)), "3.4 ms");
        assert_eq!(short(Duration::from_millis(283_211)), "283 s");
        assert_eq!(short(Duration::from_micros(999_900)), "1.00 s");
        assert_eq!((per_second(Some(0.42)), per_second(Some(389.4))), ("0.4".into(), "389".into()));
    }
}
